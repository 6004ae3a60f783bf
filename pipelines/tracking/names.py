"""Turning our names and settings into what MLflow accepts, without two of them becoming one."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

PARAM_LIMIT = 500  # characters; MLflow takes 6000, but a list of runs is read by people
KEY_LIMIT = 250  # characters
TAG_LIMIT = 5000  # characters; MLflow takes 8000
DIGEST_LENGTH = 32  # MLflow refuses dataset digests over 36 characters


def safe_key(key: str) -> str:
    """A metric, parameter or tag name with what MLflow refuses replaced by "_"."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", "_", key)[:KEY_LIMIT]


class Names:
    """The names of one run in MLflow; a name that would be another's gets a few digits of its own hash."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def safe(self, name: str) -> str:
        """`safe_key(name)`, made unique."""
        key = safe_key(name)
        if self._owners.setdefault(key, name) == name:
            return key
        return f"{key[: KEY_LIMIT - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def flatten(settings: Mapping[str, object]) -> dict[str, str]:
    """Nested settings as parameters: {"sft": {"epochs": 2}} becomes {"sft.epochs": "2"}.

    Long values are cut, with a note: the complete settings are the run's `settings.json`.
    """
    names = Names()
    return {names.safe(key): _cut(value) for key, value in _leaves(settings, "")}


def cut_values(settings: Mapping[str, object]) -> dict[str, int]:
    """The settings of which `flatten` shows only the beginning, and how many characters each has."""
    return {key: len(value) for key, value in _leaves(settings, "") if len(value) > PARAM_LIMIT}


def _leaves(node: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + str(key), value if isinstance(value, str) else json.dumps(value, default=str)


def _cut(value: str) -> str:
    if len(value) <= PARAM_LIMIT:
        return value
    note = f"… ({len(value)} characters, see settings.json)"
    return value[: PARAM_LIMIT - len(note)] + note
