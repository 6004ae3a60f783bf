"""What a person typed, checked before anything is composed: each override is kept, or answered by one sentence."""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import BaseModel

from pipelines.config_errors import listed, nearest, unknown_key
from rloo_core.settings import ExperimentSettings

# ${name:...} calls a resolver (oc.env reads the environment); a ${ within a ${ can spell one out.
RESOLVER = re.compile(r"\$\{[^}]*(:|\$\{)")

STUDY = "study"


def check_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split overrides into those that can be composed and sentences about those that cannot."""
    usable: list[str] = []
    problems: list[str] = []
    for text in map(_with_home, overrides):
        problem = _problem(text)
        if problem is None:
            usable.append(text)
        else:
            problems.append(problem)
    return usable, problems


def key_of(text: str) -> str:
    """The setting, or the folder of conf/, that an override is about."""
    return text.partition("=")[0].strip().lstrip("+~")


def last_of_each(overrides: Sequence[str]) -> list[str]:
    """Overrides where the last one of each setting counts, in the place of the first."""
    return list({key_of(text): text for text in overrides}.values())


def without_root(overrides: Sequence[str]) -> list[str]:
    """What is to be computed, whatever the place: overrides but for `paths.root`."""
    return [text for text in overrides if key_of(text) != "paths.root"]


@cache
def group_options() -> dict[str, list[str]]:
    """The files of each folder of conf/, by folder; conf/study holds no settings of a run."""
    folders = [folder for folder in files("pipelines.conf").iterdir() if folder.is_dir() and folder.name != STUDY]
    names = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in folders}
    yaml = {
        group: [n.removesuffix(".yaml") for n in found if n.endswith(".yaml") and n[0] != "_"]
        for group, found in names.items()
    }
    return {group: options for group, options in sorted(yaml.items()) if options}


@cache
def known_keys() -> tuple[str, ...]:
    """Dotted names of all settings, in the order of the settings types."""
    return tuple(_leaves(ExperimentSettings, ""))


@cache
def nullable(key: str) -> bool:
    """Whether a setting may be null."""
    section: Any = ExperimentSettings
    for name in key.split(".")[:-1]:
        section = section.model_fields[name].annotation
    return type(None) in get_args(section.model_fields[key.rpartition(".")[2]].annotation)


def sections() -> set[str]:
    """Dotted names of everything that holds settings: data, data.synthetic, ..."""
    parts = [key.split(".") for key in known_keys()]
    return {".".join(names[:length]) for names in parts for length in range(1, len(names))}


def _leaves(settings: type[BaseModel], prefix: str) -> list[str]:
    names: list[str] = []
    for name, field in settings.model_fields.items():
        inner: Any = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        names += _leaves(inner, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return names


def _with_home(text: str) -> str:
    """`paths.root=~/runs` as a shell would have it: no shell expands ~ after a =, and Hydra cannot read it."""
    key, _, value = text.partition("=")
    return f"{key}={Path.home()}/{value[2:]}" if value.startswith("~/") else text


def _problem(text: str) -> str | None:
    return _forbidden(text) or _malformed(text) or _unsupported(_parse(text)) or _misnamed(_parse(text))


def _forbidden(text: str) -> str | None:
    if "\0" in text or not _is_unicode(text):
        return f"{text!a}: NUL bytes and bytes that are not UTF-8 are refused; no setting and no path needs them"
    if "_target_" in text:
        return f"{text}: _target_ is refused, settings are values and start no code"
    if RESOLVER.search(text):
        return f"{text}: resolvers such as ${{oc.env:...}} and ${{hydra:...}} are refused; write the value itself"
    return None


def _is_unicode(text: str) -> bool:
    """Arguments that are not UTF-8 arrive with lone surrogates, which no file can be written with."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _malformed(text: str) -> str | None:
    if text.startswith("-"):
        return f"{text} is no option of this command (see --help), and settings have no dashes: algorithm.group_size=2"
    if "=" not in text and not text.startswith("~"):
        is_experiment = text in group_options()["experiment"]
        hint = f"did you mean experiment={text}?" if is_experiment else "settings are written key=value, e.g. seed=1"
        return f"{text!r} is not an override; {hint}"
    try:
        _parse(text)
    except HydraException as error:  # OverrideParseException, or the lexer's own
        key, _, value = text.partition("=")
        reason = str(error).splitlines()[0]
        return f"{text!r} cannot be read ({reason}); quote values with special characters twice: '{key}=\"{value}\"'"
    return None


def _parse(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


def _unsupported(override: Override) -> str | None:
    text, key = str(override.input_line), override.key_or_group
    if override.is_delete():
        return f"{text}: settings cannot be removed; set a value instead (null where `rloo config` shows null)"
    if override.package is not None:
        return f"{text}: packages (@) are not offered; choose a file with {key}=NAME"
    if key.split("/")[0].split(".")[0] == "hydra":
        return f"{text}: Hydra only composes here, its own settings have no effect; everything is kept below paths.root"
    if override.is_sweep_override():
        return f"{text}: one run takes one value; sweeps are not run here. Text with a comma is quoted: '{key}=\"a,b\"'"
    if override.value() == "" and not text.rstrip().endswith(('""', "''")):
        return _empty(text, key)
    return None


def _empty(text: str, key: str) -> str | None:
    """The sentence for `key=`; None where the key itself is wrong, which is told instead."""
    if key in group_options():
        return f"{text} has no value; conf/{key} has {listed(group_options()[key], 'and')}"
    if key not in known_keys():
        return None
    return f"{text} has no value; " + (f"write {key}=null for none" if nullable(key) else f"{key} needs one")


def _misnamed(override: Override) -> str | None:
    key, value = override.key_or_group, override.value()
    if key == STUDY:
        return f"{override.input_line}: a study is no setting of a run; start it with rloo study {value}"
    if key in group_options():
        return _wrong_option(key, value)
    if key in sections():
        return _one_by_one(key)
    if key not in known_keys():
        return unknown_key(key, known_keys(), group_options())
    if override.is_add() and not override.is_force_add():
        return f"{override.input_line}: {key} exists already; write it without the +"
    return None


def _wrong_option(group: str, value: object) -> str | None:
    options = group_options()[group]
    if isinstance(value, dict) and group in sections():
        return _one_by_one(group)
    if isinstance(value, str) and value in options:
        return None
    hint = nearest(str(value), options)
    return f"{group}={value}, but conf/{group} has {listed(options, 'and')}{hint}"


def _one_by_one(section: str) -> str:
    example = next(name for name in known_keys() if name.startswith(f"{section}."))
    return f"{section} is a section; give its settings one by one, e.g. {example}=..."
