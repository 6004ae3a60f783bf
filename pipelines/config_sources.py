"""Rules about what lies outside the configuration: the run root, data, models, a reward function's module."""

import re
from pathlib import Path

from pipelines.code_digest import SourceError, code_digests, module_file, on_path
from pipelines.config_errors import nearest
from pipelines.module_names import defined_names
from rloo_core.data.files import SOURCES, data_entries
from rloo_core.rules import Values, rule
from rloo_core.settings import DataSettings

PLACEHOLDER = "DIRECTORY_OR_HUB_ID"  # conf/model/pretrained.yaml: a null there would train a new model without a word
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@rule("data.source", "data.path")
def _rows_from_somewhere(v: Values) -> str | None:
    source, path = v["data.source"], v["data.path"]
    if source == "synthetic":
        return None if path is None else f"data.path={path}, but data.source=synthetic reads no files; set data=tables"
    if source not in SOURCES:
        return None  # a function of the user's, which may need none
    if path is None:
        return f"data.path=null, but data.source={source} needs a file, a directory or a hub id; set data.path=..."
    return _unreadable(source, path)


def _unreadable(source: str, path: str) -> str | None:
    try:
        data_entries(DataSettings.model_construct(source=source, path=path))
    except ValueError as error:
        return str(error)
    return None


def not_a_function(setting: str, function: str) -> str | None:
    """What is wrong with `module:function`, found by reading its source: nothing of it is imported here."""
    if not FUNCTION.fullmatch(function):
        return f"{setting}, but it must look like module:function, e.g. my_rewards:short_and_polite"
    module, _, name = function.partition(":")
    packages = on_path(module.partition(".")[0])
    source = module_file(module, packages)
    if source is None:
        return (
            f"{setting}: no module {module}; it is looked for where the command is typed and among the installed "
            f"packages"
        )
    try:
        code_digests(module, packages)  # all of its package that it reaches
        names = defined_names(source)
    except SourceError as error:
        return f"{setting} cannot be read: {error}"
    if names is None or name in names:
        return None
    return f"{setting}, but {source} defines no {name} at its top level{nearest(name, names)}"


@rule("paths.root")
def _root_has_a_name(v: Values) -> str | None:
    return None if v["paths.root"].strip() else "paths.root is empty; name a directory, e.g. paths.root=./runs"


@rule("model.path")
def _model_is_given(v: Values) -> str | None:
    return None if v["model.path"] != PLACEHOLDER else f"model=pretrained needs model.path={PLACEHOLDER}"


@rule("model.path", "model.gguf_file")
def _model_directory(v: Values) -> str | None:
    return _missing("model.path", v["model.path"]) or (
        None if v["model.gguf_file"] else _no_model("model.path", v["model.path"])
    )


@rule("reward_model.path")
def _reward_model_directory(v: Values) -> str | None:
    key = "reward_model.path"
    return _missing(key, v[key]) or _no_model(key, v[key])


def _missing(key: str, path: str | None) -> str | None:
    if path == "":
        return f"{key} is empty; write {key}=null for none"
    if path is None or not path.startswith((".", "/", "~")) or Path(path).expanduser().exists():
        return None
    return f"{key}={path}: no such file or directory (relative paths start where the command is typed)"


def _no_model(key: str, path: str | None) -> str | None:
    """The sentence for a local path that holds no model; hub ids are not looked up."""
    if path is None or not Path(path).exists() or (Path(path) / "config.json").is_file():
        return None
    kind = "has no config.json" if Path(path).is_dir() else "is a file"
    return f"{key}={path} {kind}, but it must be a directory that `save_pretrained` wrote; set {key} to one"
