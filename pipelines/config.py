"""Settings: composed by Hydra from `conf/`, resolved by OmegaConf, validated by pydantic. All problems come at once.

    load_settings(["experiment=tiny", "algorithm.group_size=2"])  →  ExperimentSettings, or ConfigError

Only the validated settings are hashed, logged and passed on. Nothing heavy is imported here.
"""

import copy
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from pipelines import config_extensions, config_limits, config_rules, config_sources  # noqa: F401 (their rules count once they are imported)
from pipelines.config_errors import ConfigError
from pipelines.config_overrides import check_overrides
from pipelines.config_validation import validation_problems
from rloo_core.algorithms import contradictions  # noqa: F401 (the same)
from rloo_core.rules import broken_rules, flatten
from rloo_core.settings import ExperimentSettings

LOCAL_PATHS = ("data.path", "model.path", "reward_model.path")  # directories and files, where they are not hub ids
REFERENCE = re.compile(r"\$\{([\w.]+)\}")

_hydra_is_global = threading.Lock()  # Hydra keeps one composition per process


def load_settings(overrides: Sequence[str]) -> ExperimentSettings:
    """Compose `conf/` with the overrides a person typed, and validate the result: see `load_settings_each`."""
    return load_settings_each(overrides, [{}])[0]


def load_settings_each(overrides: Sequence[str], changes: Sequence[Mapping[str, int]]) -> list[ExperimentSettings]:
    """Settings that differ in a few numbers, e.g. in their seeds: composed once, which is what takes the time.

    Args:
        overrides: Hydra overrides, e.g. ["experiment=tiny", "algorithm.steps=20"].
        changes: Values by dotted name, put in after all overrides as if typed last, e.g. [{"seed": 0}, {"seed": 1}].

    Returns:
        For each of the changes the settings of a whole run; `paths.root` and local data and model paths are absolute.

    Raises:
        ConfigError: With every problem found: unknown keys, wrong values, impossible combinations.
    """
    usable, problems = check_overrides(overrides)
    config = _compose(usable, problems)
    return [_validated(*_resolve(config, changed, problems), problems) for changed in changes]


def _validated(composed: dict[str, Any], references: dict[str, str], found: Sequence[str]) -> ExperimentSettings:
    """The settings, if nothing is wrong with them and nothing was found before."""
    values, problems = _with_absolute_paths(composed), list(found)
    failures: dict[str, str] = {}
    try:
        settings = ExperimentSettings(**values)
    except ValidationError as error:
        failures = validation_problems(error)
    problems += [failures[key] for key in failures if references.get(key) not in failures]  # each mistake once
    problems += broken_rules(flatten(values), wrong=failures.keys())
    if problems:
        raise ConfigError(problems)
    return settings


def to_yaml(settings: ExperimentSettings) -> str:
    """The settings as YAML, resolved: what `rloo config` prints and MLflow keeps."""
    return OmegaConf.to_yaml(OmegaConf.create(settings.model_dump(mode="json")))


def _compose(overrides: Sequence[str], problems: Sequence[str]) -> DictConfig:
    with _hydra_is_global:
        GlobalHydra.instance().clear()
        try:
            with initialize_config_module("pipelines.conf", version_base="1.3"):
                return compose("config", overrides=list(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError([*problems, _first_line(error)]) from None


def _resolve(
    composed: DictConfig, changed: Mapping[str, int], problems: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The composed values, and for each setting that only repeats another one (`${seed}`) the other's name."""
    config = copy.deepcopy(composed)
    try:
        for key, value in changed.items():
            OmegaConf.update(config, key, value)
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        unresolved = OmegaConf.to_container(config)
    except OmegaConfBaseException as error:
        raise ConfigError([*problems, _first_line(error)]) from None
    assert isinstance(values, dict)
    assert isinstance(unresolved, dict)
    written = flatten({str(key): value for key, value in unresolved.items()})
    repeated = {key: match[1] for key, value in written.items() if (match := REFERENCE.fullmatch(str(value)))}
    return {str(key): value for key, value in values.items()}, repeated


def _first_line(error: Exception) -> str:
    key = getattr(error, "full_key", None)
    text = str(error).splitlines()[0]
    return f"{key}: {text}" if key and key not in text else text


def _with_absolute_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Relative paths start where the command was typed, so they are made absolute while that is known."""
    for dotted in ("paths.root", *LOCAL_PATHS):
        section, key = dotted.split(".")
        path = values[section][key]
        if dotted == "paths.root" and isinstance(path, str) and path:
            values[section][key] = str(Path(path).expanduser().resolve())
        elif isinstance(path, str):
            values[section][key] = ",".join(map(_absolute, path.split(","))) if not _exists(path) else _absolute(path)
    return values


def _absolute(path: str) -> str:
    """The path, absolute where it exists; hub ids stay as they are."""
    return str(Path(path.strip()).expanduser().resolve()) if _exists(path) else path


def _exists(path: str) -> bool:
    return bool(path.strip()) and Path(path.strip()).expanduser().exists()
