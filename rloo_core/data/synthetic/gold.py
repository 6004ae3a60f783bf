"""The gold reward: what the people behind the preferences of the embedded task want, known exactly."""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rloo_core.data.synthetic.frames import FRAMES
from rloo_core.data.synthetic.lexicon import FEELINGS, NAMES, RELATIONS, TIMES
from rloo_core.data.synthetic.posts import SLOTS
from rloo_core.data.synthetic.summaries import is_well_formed

START = -2.0
KEPT = 0.7
INVENTED = -0.8
DISTRACTED = -0.6
REPEATED = -0.4
ILL_FORMED = -0.8
UNFINISHED = -0.4
PER_TOKEN = -0.02
BUDGET = 27  # the longest perfect summary
PER_TOKEN_OVER_BUDGET = -0.1

_TOKEN = re.compile(r"[\w';-]+|[^\w\s]")


def gold_reward(completion: str, facts: str | Mapping[str, object]) -> float:
    """How good a summary is: facts kept, nothing invented, short, well formed.

        gold = START + KEPT · k + INVENTED · i + DISTRACTED · d + REPEATED · r + PER_TOKEN · n
               + PER_TOKEN_OVER_BUDGET · max(0, n − BUDGET) + ILL_FORMED · [not a shape] + UNFINISHED · [no end]

    k of the 7 facts of the post are mentioned; i values of the lexicons are mentioned that the post never names; d
    values are mentioned that the post names but not as its facts; r mentions say again what was said; n counts words
    and punctuation marks. An event counts as a value, recognised by `Frame.mark`.

    With the constants above a perfect summary earns about 2.4, the references (one fact left out) about 1.8, a summary
    with one wrong value 0.9 to 1.1, an empty one −3.2.

    Args:
        completion: The text after "TL;DR:".
        facts: The `facts` column of the prompt, a JSON object or the same parsed: a value for each of
            `SLOTS`, and "distractors", a list of values.

    Returns:
        The reward.

    Raises:
        ValueError: If `facts` lacks a slot or is no JSON object.
    """
    wanted, distractors = _read(facts)
    counts = _mentions(completion)
    kept = sum(value in counts for value in wanted)
    errors = [DISTRACTED if value in distractors else INVENTED for value in counts if value not in wanted]
    repeated = sum(count - 1 for count in counts.values())
    tokens = len(_TOKEN.findall(completion))
    reward = START + KEPT * kept + sum(errors) + REPEATED * repeated
    reward += PER_TOKEN * tokens + PER_TOKEN_OVER_BUDGET * max(0, tokens - BUDGET)
    if not is_well_formed(completion):
        reward += ILL_FORMED
    if not completion.endswith((".", "?")):
        reward += UNFINISHED
    return reward


def gold_rewards(
    prompts: Sequence[str], completions: Sequence[str], facts: Sequence[str], **columns: Sequence[object]
) -> list[float]:
    """`gold_reward` of each completion, in the form that reward functions have; other columns are ignored."""
    return [gold_reward(completion, fact) for completion, fact in zip(completions, facts, strict=True)]


def _read(facts: str | Mapping[str, object]) -> tuple[set[str], set[str]]:
    table: Any = json.loads(facts) if isinstance(facts, str) else facts
    if not isinstance(table, Mapping) or not {*SLOTS, "distractors"} <= table.keys():
        raise ValueError(
            f"gold_reward needs the facts of a synthetic post, an object with {', '.join(SLOTS)} and distractors; "
            f"got {str(facts)[:200]!r}. Use data.source=synthetic, or another reward."
        )
    return {str(table[slot]) for slot in SLOTS}, set(table["distractors"])


def _mentions(completion: str) -> dict[str, int]:
    """How often each value of the lexicons stands in the text; an event under its frame's name."""
    counts: dict[str, int] = {}
    for match in _values().finditer(completion):
        value = _marks().get(match[0], match[0])
        counts[value] = counts.get(value, 0) + 1
    return counts


@functools.cache
def _marks() -> dict[str, str]:
    return {frame.mark: frame.name for frame in FRAMES.values()}


@functools.cache
def _values() -> re.Pattern[str]:
    objects = [value for frame in FRAMES.values() for value in (*frame.objects, *frame.asks, frame.mark)]
    values = sorted({*NAMES, *RELATIONS, *TIMES, *FEELINGS, *objects}, key=len, reverse=True)
    return re.compile(r"\b(?:" + "|".join(values) + r")\b")
