"""Anthropic HH: transcripts {chosen, rejected} that share all turns but the last.

https://github.com/anthropics/hh-rlhf: "\\n\\nHuman: … \\n\\nAssistant: …", the preferred and the other continuation.
"""

import re
from collections.abc import Set
from typing import Any

from rloo_core.data.schema import Messages, Record, SourceRow, UnusableRowError, preference

HUMAN = "\n\nHuman:"
ASSISTANT = "\n\nAssistant:"
TURN = re.compile(r"\n\n(Human|Assistant):")
ROLES = {"Human": "user", "Assistant": "assistant"}
LOOKED_FOR = "chosen and rejected, with transcripts"


def table_of(columns: Set[str]) -> str | None:
    """The table that rows with these columns belong to, or None."""
    return "preferences" if {"chosen", "rejected"} <= columns else None


def parse(source: SourceRow, table: str) -> Record:
    """A pair of transcripts as a row of preferences.

    Raises:
        UnusableRowError: With the reason, if the pair cannot be used.
    """
    row = split_pair(source.values.get("chosen"), source.values.get("rejected"))
    return Record(table, row, source.where, source.split)


def split_pair(chosen: Any, rejected: Any) -> dict[str, Any]:
    """Prompt (up to and including the last "\\n\\nAssistant:") and the two replies behind it, as they stand.

    Raises:
        UnusableRowError: If a transcript is missing, the prompts differ, the replies are the same, or one is empty.
    """
    prompt, chosen_reply = split_transcript(chosen, "chosen")
    other_prompt, rejected_reply = split_transcript(rejected, "rejected")
    if prompt != other_prompt:
        raise UnusableRowError("prompt differs between chosen and rejected")
    return preference(prompt, chosen_reply, rejected_reply)


def split_transcript(text: Any, name: str = "transcript") -> tuple[str, str]:
    """A transcript as (prompt, reply).

    Raises:
        UnusableRowError: If it is not text, or has no turn of the assistant.
    """
    if not isinstance(text, str):
        raise UnusableRowError(f"{name} is missing" if text is None else f"{name} is not text")
    cut = text.rfind(ASSISTANT)
    if cut < 0:
        raise UnusableRowError(f"{name} has no turn of the assistant")
    cut += len(ASSISTANT)
    return text[:cut], text[cut:]


def transcript_messages(prompt: str) -> Messages:
    """A transcript's prompt as chat messages: the turns before the one the assistant is about to take.

    Chat templates want the roles to alternate, so turns of one speaker in a row become one message.

    Raises:
        UnusableRowError: If it does not begin with a turn of the human, or a turn is empty.
    """
    before, *parts = TURN.split(prompt)
    turns = [(ROLES[role], text.strip()) for role, text in zip(parts[::2], parts[1::2], strict=True)][:-1]
    if before.strip() or not turns or turns[0][0] != "user":
        raise UnusableRowError("transcript does not begin with a turn of the human")
    if turns[-1][0] != "user":
        raise UnusableRowError("transcript ends with two turns of the assistant")
    if not all(text for _, text in turns):
        raise UnusableRowError("empty turn in the transcript")
    messages: Messages = []
    for role, text in turns:
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n\n" + text
        else:
            messages.append({"role": role, "content": text})
    return messages
