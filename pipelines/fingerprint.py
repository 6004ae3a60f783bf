"""What a stage's result depends on, and the hash of it. Two runs with the same fingerprint make the same numbers.

settings   the stage's validated settings, less those that it does not read (`pipelines.unread`)
inputs     digest of what each earlier stage left: its bytes, not its settings
files      bytes of local data and model files
code       the modules the stage's code reaches, and a reward function's
libraries  versions of those that decide numbers; Python's, the machine's
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pipelines.code_digest import code_digests, core_packages, on_path
from pipelines.config_extensions import functions_of
from pipelines.digests import DigestCache, sha256_of_text
from pipelines.unread import is_read
from rloo_core.data.files import data_files
from rloo_core.rules import flatten
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import Stage

LENGTH = 32  # hex digits; 128 bits, and short enough for MLflow's identifiers
LIBRARIES = ("torch", "transformers", "tokenizers", "accelerate", "peft", "numpy", "datasets", "safetensors")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")

Parts = dict[str, object]  # flat: "settings/sft.epochs", "inputs/data", "files/...", "code/...", "libraries/torch"


@dataclass(frozen=True)
class Fingerprint:
    """The hash, and the parts it was made from, so that a difference can be explained."""

    hex: str
    parts: Parts

    def __str__(self) -> str:
        return self.hex


def stage_fingerprint(
    stage: Stage, settings: ExperimentSettings, input_digests: Mapping[str, str], cache_dir: Path | None = None
) -> Fingerprint:
    """Fingerprint of what a stage would produce.

    Args:
        stage: One of `rloo_core.stages.STAGES`.
        settings: Of the whole run.
        input_digests: Digest of the outputs of each stage in `stage.inputs`.
        cache_dir: Where digests of large files are remembered; `<paths.root>/cache` by default.

    Raises:
        ValueError: If an input's digest is missing, or a data file cannot be found.
    """
    missing = [name for name in stage.inputs if name not in input_digests]
    if missing:
        raise ValueError(f"the fingerprint of {stage.name} needs the digests of {stage.inputs}; missing: {missing}")
    parts = own_parts(stage, settings, cache_dir) | {f"inputs/{name}": input_digests[name] for name in stage.inputs}
    return Fingerprint(sha256_of_text(json.dumps(parts, sort_keys=True, allow_nan=False))[:LENGTH], parts)


def own_parts(stage: Stage, settings: ExperimentSettings, cache_dir: Path | None = None) -> Parts:
    """Everything but the inputs: what is known before earlier stages have run."""
    cache = DigestCache(cache_dir or Path(settings.paths.root) / "cache")
    return {
        **_prefixed("settings", read_settings(stage, settings)),
        **_prefixed("files", {name: cache.sha256(path) for name, path in _files(stage, settings).items()}),
        **_prefixed("code", _code(stage, settings)),
        **_prefixed("libraries", _libraries(stage, settings)),
        **_prefixed("machine", _machine(stage, settings)),
    }


def _prefixed(kind: str, values: Mapping[str, object]) -> Parts:
    return {f"{kind}/{name}": value for name, value in values.items()}


def read_settings(stage: Stage, settings: ExperimentSettings) -> dict[str, object]:
    """The settings that a stage reads, by dotted name."""
    flat = flatten(stage.settings(settings).model_dump(mode="json"))
    return {name: value for name, value in flat.items() if is_read(stage, settings, name)}


def _files(stage: Stage, settings: ExperimentSettings) -> dict[str, Path]:
    """Local files that the stage reads, by names that do not say where they lie."""
    sections = stage.settings_type.model_fields
    found: dict[str, Path] = {}
    if "data" in sections and settings.data.source != "synthetic":
        found |= _named("data", data_files(settings.data))
    if stage.name in ("data", "sft") and settings.model.path is not None:
        weights = stage.name != "data"
        found |= {f"model/{n}": p for n, p in _tree(settings.model.path).items() if weights or p.suffix not in WEIGHTS}
    if "reward_model" in sections and settings.reward_model.path is not None:
        found |= {f"reward_model/{name}": path for name, path in _tree(settings.reward_model.path).items()}
    if "evaluation" in sections:
        found |= _judges(settings)
    return found


def _judges(settings: ExperimentSettings) -> dict[str, Path]:
    """Files that decide what judges say: foreign reward models, a prompt template of one's own."""
    kinds = [judge.partition(":") for judge in settings.evaluation.judges]
    models = [directory for kind, _, directory in kinds if kind == "reward" and directory]
    found = {f"judge{i}/{name}": path for i, model in enumerate(models) for name, path in _tree(model).items()}
    template = Path(settings.evaluation.llm.template)
    return found | ({"judge/template": template} if ("llm", "", "") in kinds and template.is_file() else {})


def _judge_functions(settings: ExperimentSettings) -> list[str]:
    """Functions that judge, as `module:function`."""
    kinds = [judge.partition(":") for judge in settings.evaluation.judges]
    return [function for kind, _, function in kinds if kind in ("function", "pairwise") and function]


def _named(kind: str, files: list[Path]) -> dict[str, Path]:
    if not files:
        return {}
    common = Path(os.path.commonpath([file.parent for file in files]))
    return {f"{kind}/{file.relative_to(common).as_posix()}": file for file in files}


def _tree(path: str) -> dict[str, Path]:
    """Files below a local directory by relative name; none for a hub id."""
    root = Path(path)
    if root.is_file():
        return {root.name: root}
    visible = (file for file in sorted(root.rglob("*")) if file.is_file())
    names = {file.relative_to(root).as_posix(): file for file in visible}
    return {name: file for name, file in names.items() if not any(part.startswith(".") for part in name.split("/"))}


def _code(stage: Stage, settings: ExperimentSettings) -> dict[str, str]:
    code = code_digests(stage.module, core_packages())
    sections = stage.settings_type.model_fields
    functions = [*functions_of(settings, sections), *(_judge_functions(settings) if "evaluation" in sections else ())]
    for function in functions:
        module = function.partition(":")[0]
        code |= code_digests(module, on_path(module.partition(".")[0]))
    return code


def _libraries(stage: Stage, settings: ExperimentSettings) -> dict[str, str]:
    package = settings.model.gguf_package if is_read(stage, settings, "model.gguf_package") else None
    names = [*LIBRARIES, *([package, "gguf"] if package else [])]
    return {name: installed(name) for name in names} | {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}


@cache
def installed(distribution: str) -> str:
    """Version of an installed distribution, or "not installed"."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _machine(stage: Stage, settings: ExperimentSettings) -> dict[str, str]:
    machine = {"architecture": platform.machine()}
    if "compute" in stage.settings_type.model_fields:
        machine["device"] = resolved_device(settings.compute.device)
    return machine


def resolved_device(wanted: str) -> str:
    """What `device=auto` will choose, guessed without importing torch: cuda where torch and the machine have it."""
    if wanted != "auto":
        return wanted
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    driver = Path("/proc/driver/nvidia/version").exists()
    return "cuda" if driver and not hidden and not installed("torch").endswith("+cpu") else "cpu"
