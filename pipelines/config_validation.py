"""What pydantic found, as one sentence a setting: the key, what came, what it must be."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from pipelines.config_errors import listed
from pipelines.config_overrides import known_keys, sections

TERM = "name or {function: NAME, weight: 0.5, arguments: {low: 3}}, where weight and arguments may be left out"
SEVERAL = ("data.path",)  # texts that may name several things


def shown(value: object) -> str:
    """A value as it is written in an override."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def validation_problems(error: ValidationError) -> dict[str, str]:
    """One sentence a wrong setting, by its dotted name."""
    expected: dict[str, list[str]] = {}
    came: dict[str, object] = {}
    for detail in error.errors():
        key = _key(detail["loc"])
        expected.setdefault(key, []).append(expectation(detail["type"], detail.get("ctx", {}), detail["msg"]))
        came.setdefault(key, detail["input"])
    return {key: _sentence(key, came[key], wanted) for key, wanted in expected.items()}


def _key(location: tuple[int | str, ...]) -> str:
    """The setting's name; pydantic appends the branch of a union and the index in a list."""
    names = [str(part) for part in location]
    while len(names) > 1 and ".".join(names) not in {*known_keys(), *sections()}:
        names.pop()
    return ".".join(names)


def _sentence(key: str, value: object, expected: list[str]) -> str:
    if key == "reward.terms":
        return f"reward.terms={shown(value)}, but it must be a list of at least one {TERM}"
    advice = _advice(key, value) if expected == ["text"] else ""
    return f"{key}={shown(value)}, but it must be {listed(dict.fromkeys(expected))}{advice}"


def _advice(key: str, value: object) -> str:
    """How to write text that was read as something else."""
    if isinstance(value, list):
        several = f"; several are one text with commas: '{key}=\"a,b\"'" if key in SEVERAL else ""
        return f", not a list{several}"
    return f"; quote it: '{key}=\"{shown(value)}\"'" if isinstance(value, bool | int | float) else ""


def expectation(kind: str, context: Mapping[str, Any], message: str) -> str:
    """What pydantic expected, in words that follow "it must be"; its own message where there are none."""
    phrases: dict[str, Callable[[], str]] = {
        "int_type": lambda: "a whole number",
        "int_from_float": lambda: "a whole number",
        "float_type": lambda: "a number",
        "finite_number": lambda: "a finite number",
        "bool_type": lambda: "true or false",
        "string_type": lambda: "text",
        "tuple_type": lambda: "a list such as [a,b]",
        "literal_error": lambda: context["expected"].replace("'", ""),
        "greater_than": lambda: f"above {context['gt']:g}",
        "greater_than_equal": lambda: f"at least {context['ge']:g}",
        "less_than": lambda: f"below {context['lt']:g}",
        "less_than_equal": lambda: f"at most {context['le']:g}",
        "missing": lambda: "given",
        "extra_forbidden": lambda: "left out: there is no such setting",
        "model_type": lambda: "a section with settings",
        "dict_type": lambda: "a section with keys of its own",
    }
    return phrases[kind]() if kind in phrases else message
