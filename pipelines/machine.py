"""What this machine allows a deployment to start: its own settings, which no run and no deployment can change.

Servers on loopback have no login, so whoever reaches them can start a run with any parameters. A deployment may name
code to be imported (`module:function`) and files outside the run root only if the machine's settings list them:

    # ~/.config/rloo/machine.toml (or the file that RLOO_MACHINE names)
    functions = ["my_rewards:short", "team_rewards:*"]
    paths = ["/data/hh"]
    judges = ["http://127.0.0.1:8000/v1"]    # addresses that evaluation.llm.base_url may name
    keys = ["LOCAL_API_KEY"]                 # environment variables that evaluation.llm.api_key_env may name

What a person types on the command line is not restricted: they can run anything anyway.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipelines.config_errors import ConfigError, listed
from rloo_core.rules import flatten
from rloo_core.settings import ExperimentSettings

FILE = "RLOO_MACHINE"
OWN = ("paths.", "services.", "tracking.")  # the machine gives these itself
LISTS = ("functions", "paths", "judges", "keys")
OPENAI_KEY = "OPENAI_API_KEY"
CODE = ("function:", "pairwise:", "advantages:")  # prefixes of settings that name code


@dataclass(frozen=True)
class Machine:
    """The machine's settings.

    Args:
        functions: Patterns of `module:function`, e.g. "my_rewards:*".
        paths: Directories (or files) that may be read besides the run root.
        judges: Addresses of language-model judges, besides OpenAI's.
        keys: Environment variables whose content may be sent to them, besides OPENAI_API_KEY.
        source: The file they come from.
    """

    functions: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    judges: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    source: Path = Path()

    def allows_function(self, name: str) -> bool:
        """Whether `module:function` is listed."""
        return any(fnmatchcase(name, pattern) for pattern in self.functions)

    def allows_path(self, path: Path, root: Path) -> bool:
        """Whether a path lies below the run root or a listed directory, links followed."""
        real = path.resolve()
        return any(real.is_relative_to(place.resolve()) for place in (root, *self.paths))


def machine_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the machine's settings are."""
    if environ.get(FILE):
        return Path(environ[FILE])
    config = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".config"
    return Path(config) / "rloo" / "machine.toml"


def load_machine(file: Path | None = None) -> Machine:
    """Read the machine's settings; where there is no file, nothing is allowed.

    Raises:
        ConfigError: If the file cannot be read, or says something else.
    """
    file = file or machine_file()
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Machine(source=file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    wrong = [name for name in values if name not in LISTS]
    if wrong or not all(isinstance(v, list) and all(isinstance(e, str) for e in v) for v in values.values()):
        raise ConfigError(f"{file}: expected {listed(LISTS, 'and')}, each a list of texts; got {', '.join(values)}")
    paths = tuple(Path(path).expanduser() for path in values.get("paths", []))
    relative = [str(path) for path in paths if not path.is_absolute()]
    if relative:
        raise ConfigError(f"{file}: paths must be absolute, not {', '.join(relative)}")
    functions, judges, keys = (tuple(values.get(name, [])) for name in ("functions", "judges", "keys"))
    return Machine(functions, paths, judges, keys, file)


def refuse_what_is_not_allowed(settings: ExperimentSettings, machine: Machine) -> None:
    """Check the settings that a deployment asks for.

    Raises:
        ConfigError: For every setting that names code or files which the machine does not list.
    """
    root = Path(settings.paths.root)
    problems = [
        problem
        for key, value in flatten(settings.model_dump()).items()
        if not key.startswith(OWN)
        for text in _texts(value)
        if (problem := _problem(key, text, root, machine)) is not None
    ]
    if problems:
        raise ConfigError(problems)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, Mapping):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list | tuple) else []


def _problem(key: str, text: str, root: Path, machine: Machine) -> str | None:
    text = text.strip()
    if key == "evaluation.llm.base_url":
        listed_there = text in machine.judges
        return None if listed_there else f"{key}={text}: a deployment asks only judges that {machine.source} lists"
    if key == "evaluation.llm.api_key_env":
        known = text in (OPENAI_KEY, *machine.keys)
        return None if known else f"{key}={text}: a deployment sends only keys that {machine.source} lists"
    function = _function(text)
    if function is not None and not machine.allows_function(function):
        return (
            f"{key}={text}: a deployment imports only functions that {machine.source} lists, e.g. "
            f'functions = ["{function}"]'
        )
    path = text.partition(":")[2] if text.startswith("reward:") else text
    if _names_a_file(path) and not machine.allows_path(Path(path).expanduser(), root):
        return (
            f"{key}={text}: a deployment reads only files below its run root {root} and below the paths that "
            f"{machine.source} lists"
        )
    return None


def _function(text: str) -> str | None:
    """The `module:function` that a text names; None if it names none (an address is no function)."""
    for prefix in CODE:
        text = text.removeprefix(prefix)
    module, colon, name = text.partition(":")
    is_code = colon and module.replace(".", "a").isidentifier() and name.isidentifier()
    return text if is_code else None


def _names_a_file(text: str) -> bool:
    """Whether a text can be a path: one that is written like it, or that is there."""
    return text.startswith(("/", "~", "./", "../", "file:", "sqlite:")) or ("/" in text and Path(text).exists())
