"""Settings that do not go together, each combination as one sentence that names the key and the way out."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]  # settings by dotted name


@dataclass(frozen=True)
class Rule:
    """A check across settings: which it reads, and the sentence for values that do not go together."""

    keys: tuple[str, ...]
    check: Callable[[Values], str | None]


RULES: list[Rule] = []


def broken_rules(values: Values, wrong: Collection[str] = ()) -> list[str]:
    """Sentences for all combinations that cannot run; rules that read a setting in `wrong` are left out."""
    fit = [rule for rule in RULES if not any(key in wrong or key not in values for key in rule.keys)]
    return [problem for rule in fit if (problem := rule.check(values)) is not None]


def rule(*keys: str) -> Callable[[Callable[[Values], str | None]], Callable[[Values], str | None]]:
    """Register a check that reads `keys`."""

    def register(check: Callable[[Values], str | None]) -> Callable[[Values], str | None]:
        RULES.append(Rule(keys, check))
        return check

    return register


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
