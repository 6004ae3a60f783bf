"""The words of the data contract: tables, splits, rows, and what is said of a row that cannot be used."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Messages = list[dict[str, str]]
Prompt = str | Messages
Row = dict[str, Any]

TABLES = ("prompts", "demonstrations", "preferences")
SPLITS = ("train", "validation", "test")
COLUMNS = {
    "prompts": ("prompt", "reference"),
    "demonstrations": ("prompt", "completion"),
    "preferences": ("prompt", "chosen", "rejected"),
}
REPLIES = {"prompts": (), "demonstrations": ("completion",), "preferences": ("chosen", "rejected")}


class UnusableRowError(ValueError):
    """A row that has to be dropped; its text is the reason, in the words the report shows."""


@dataclass(frozen=True)
class SourceRow:
    """One row as it was read.

    Attributes:
        values: Its columns; empty where it could not be read.
        where: File and line (or row), for messages, e.g. "pairs-train.jsonl:17".
        table: The table its file belongs to by name, or None.
        split: The split it belongs to by its source, or None.
        problem: Why it could not be read, or "".
    """

    values: Mapping[str, Any]
    where: str
    table: str | None = None
    split: str | None = None
    problem: str = ""


@dataclass(frozen=True)
class Record:
    """One row of a table, in the columns of the contract, and where it came from."""

    table: str
    row: Row
    where: str
    split: str | None = None

    @property
    def key(self) -> str:
        """What tells prompts apart."""
        return prompt_key(self.row["prompt"])

    def with_row(self, row: Row) -> "Record":
        return replace(self, row=row)


@dataclass
class DroppedRows:
    """Rows that are not used, counted by table, split and reason, with the place of the first of each kind."""

    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    first: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def add(self, table: str, split: str | None, reason: str, where: str) -> None:
        """Count one row; `split` None is a row that was dropped before it had one."""
        key = (table, split or "any", reason)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.first.setdefault(key, where)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def rows(self) -> list[dict[str, object]]:
        """{table, split, reason, rows, first}, sorted."""
        return [
            {"table": key[0], "split": key[1], "reason": key[2], "rows": count, "first": self.first[key]}
            for key, count in sorted(self.counts.items())
        ]

    def by_reason(self) -> dict[str, dict[str, int]]:
        """Counts by reason and table, over all splits."""
        summed: dict[str, dict[str, int]] = {}
        for (table, _, reason), count in sorted(self.counts.items()):
            tables = summed.setdefault(reason, {})
            tables[table] = tables.get(table, 0) + count
        return summed

    def sentences(self) -> Iterator[str]:
        """One line for a person for each reason, with the place of the first such row."""
        for reason, tables in sorted(self.by_reason().items()):
            first = next(place for (_, _, other), place in sorted(self.first.items()) if other == reason)
            listed = ", ".join(f"{count} {table}" for table, count in tables.items())
            yield f"dropped, {reason}: {listed} (first: {first})"


def prompt_key(prompt: Prompt) -> str:
    """A string that is equal for equal prompts only."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, ensure_ascii=False)


def checked_prompt(value: object) -> Prompt:
    """A prompt from a file: text, or messages reduced to {role, content}.

    Raises:
        UnusableRowError: If it is something else, or holds no text.
    """
    prompt = value if isinstance(value, str) else checked_messages(value, "prompt")
    empty = not prompt.strip() if isinstance(prompt, str) else not prompt[-1]["content"].strip()
    if empty:
        raise UnusableRowError("empty prompt")
    return prompt


def checked_messages(value: object, name: str) -> Messages:
    """Chat messages from a file, each reduced to {role, content}.

    Raises:
        UnusableRowError: If the value is missing, no list of messages, or one holds more than text.
    """
    if value is None:
        raise UnusableRowError(f"{name} is missing")
    messages: Sequence[Any] = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not messages or not all(isinstance(message, Mapping) and "role" in message for message in messages):
        raise UnusableRowError(f"{name} is neither text nor chat messages")
    if any(message.get("tool_calls") or not isinstance(message.get("content"), str) for message in messages):
        raise UnusableRowError(f"{name} has a message that is more than text")
    return [{"role": str(message["role"]), "content": message["content"]} for message in messages]


def checked_reply(value: object, name: str) -> str:
    """A reply from a file, given as text or as one assistant message, as text.

    Raises:
        UnusableRowError: If it is something else, or empty.
    """
    if isinstance(value, str):
        text = value
    else:
        messages = checked_messages(value, name)
        if len(messages) != 1 or messages[0]["role"] != "assistant":
            raise UnusableRowError(f"{name} is not one assistant message")
        text = messages[0]["content"]
    if not text.strip():
        raise UnusableRowError("empty reply")
    return text


def preference(prompt: Prompt, chosen: object, rejected: object) -> Row:
    """A row of preferences.

    Raises:
        UnusableRowError: If a reply cannot be used, or both are the same.
    """
    if chosen is not None and chosen == rejected:
        raise UnusableRowError("chosen equals rejected")
    row = {"chosen": checked_reply(chosen, "chosen"), "rejected": checked_reply(rejected, "rejected")}
    return {"prompt": checked_prompt(prompt), **row}
