"""Your own rows: the three schemas, in the column conventions of TRL's dataset formats.

https://huggingface.co/docs/trl/dataset_formats: prompt; prompt and completion; messages; chosen and rejected, with
prompt or with the prompt at the beginning of both.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import takewhile
from typing import Any

from rloo_core.data.hh import ASSISTANT, split_pair
from rloo_core.data.schema import (
    COLUMNS,
    Messages,
    Record,
    Row,
    SourceRow,
    UnusableRowError,
    checked_messages,
    checked_prompt,
    checked_reply,
    preference,
)

LOOKED_FOR = (
    "prompt (prompts); prompt and completion, or messages (demonstrations); chosen and rejected, with or without "
    "prompt (preferences)"
)


def table_of(columns: Set[str]) -> str | None:
    """The table that rows with these columns belong to, or None."""
    if {"chosen", "rejected"} <= columns:
        return "preferences"
    if "messages" in columns or {"prompt", "completion"} <= columns:
        return "demonstrations"
    return "prompts" if "prompt" in columns else None


def parse(source: SourceRow, table: str) -> Record:
    """A row in the columns of its table, its further columns kept.

    Raises:
        UnusableRowError: With the reason, if the row cannot be used.
    """
    values = source.values
    parts = {"prompts": _prompt, "demonstrations": _demonstration, "preferences": _preference}[table](values)
    known = {*COLUMNS[table], "messages"}
    return Record(
        table, parts | {name: values[name] for name in values if name not in known}, source.where, source.split
    )


def _prompt(values: Mapping[str, Any]) -> Row:
    reference = values.get("reference")
    blank = reference is None or reference == ""
    return {
        "prompt": checked_prompt(values.get("prompt")),
        "reference": None if blank else checked_reply(reference, "reference"),
    }


def _demonstration(values: Mapping[str, Any]) -> Row:
    if values.get("label") is False:
        raise UnusableRowError("labelled as undesirable (label=false)")
    if values.get("messages") is not None:
        turns, reply = _conversation(values["messages"], "messages")
        return {"prompt": checked_prompt(turns), "completion": checked_reply(reply, "messages")}
    prompt = checked_prompt(values.get("prompt"))
    return {"prompt": prompt, "completion": checked_reply(values.get("completion"), "completion")}


def _preference(values: Mapping[str, Any]) -> Row:
    chosen, rejected = values.get("chosen"), values.get("rejected")
    if _is_conversation(chosen) or _is_conversation(rejected):
        return _conversations(chosen, rejected)
    if values.get("prompt") is not None:
        return preference(checked_prompt(values["prompt"]), chosen, rejected)
    if not isinstance(chosen, str) or not isinstance(rejected, str):
        raise UnusableRowError("prompt is missing")
    return split_pair(chosen, rejected) if ASSISTANT in chosen else _common_beginning(chosen, rejected)


def _is_conversation(value: Any) -> bool:
    """Whether a reply holds its prompt: a list of more than one message."""
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 1


def _conversation(value: Any, name: str) -> tuple[Messages, Messages]:
    """Messages as (prompt, the assistant's last)."""
    messages = checked_messages(value, name)
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise UnusableRowError(f"{name} does not end with the assistant's answer to something")
    return messages[:-1], messages[-1:]


def _conversations(chosen: Any, rejected: Any) -> Row:
    prompt, chosen_reply = _conversation(chosen, "chosen")
    other_prompt, rejected_reply = _conversation(rejected, "rejected")
    if prompt != other_prompt:
        raise UnusableRowError("prompt differs between chosen and rejected")
    return preference(prompt, chosen_reply, rejected_reply)


def _common_beginning(chosen: str, rejected: str) -> Row:
    """The longest common beginning is the prompt; a space at its end belongs to the replies (as in TRL)."""
    if chosen == rejected:
        raise UnusableRowError("chosen equals rejected")
    same = (a == b for a, b in zip(chosen, rejected, strict=False))
    prompt = chosen[: sum(takewhile(bool, same))]
    if prompt.endswith(" "):
        prompt = prompt[:-1]
    if not prompt.strip():
        raise UnusableRowError("prompt is missing: chosen and rejected begin differently")
    return preference(prompt, chosen[len(prompt) :], rejected[len(prompt) :])
