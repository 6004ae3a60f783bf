"""Summaries: the few shapes they have, how to write one, and how to recognise one.

    A   my boss walter borrowed my ladder in march and never returned it. i am furious. should i send a bill?
    B   in march, my boss walter borrowed my ladder and never returned it. i feel furious and wonder whether to …
    C   i am furious because my boss walter borrowed my ladder in march and never returned it. should i send a bill?

Any fact but the event can be left out, and the sentence stays a sentence: "someone borrowed something and never …".
"""

import functools
import re
from collections.abc import Iterable, Mapping

from rloo_core.data.synthetic.frames import FRAMES
from rloo_core.data.synthetic.lexicon import DAYS, FEELINGS, MONTHS, NAMES, RELATIONS, with_preposition

SHAPES = ("A", "B", "C")
OPTIONAL_SLOTS = ("relation", "name", "object", "when", "feeling", "ask")
OPENERS = (" well, long story short,", " okay, so basically,")
CLOSERS = (" anyway, that is about it.", " that is really all i can say.")


def write_summary(facts: Mapping[str, str], shape: str = "A", opener: str = "", closer: str = "") -> str:
    """The summary that says exactly these facts.

    Args:
        facts: Values by slot: "event", and any of `OPTIONAL_SLOTS`.
        shape: One of `SHAPES`.
        opener: Filler in front, "" or one of `OPENERS`.
        closer: Filler at the end, "" or one of `CLOSERS`.

    Returns:
        A completion: it starts with a space and ends with a full stop or a question mark.
    """
    when = f" {with_preposition(facts['when'])}" if "when" in facts else ""
    feeling, ask = facts.get("feeling"), facts.get("ask")
    if shape == "B":
        start = f"{when}, {_who(facts)}" if when else f" {_who(facts)}"
        return f"{opener}{start} {_event(facts, '')}.{_wondering(feeling, ask)}{closer}"
    told = f"{_who(facts)} {_event(facts, when)}."
    if feeling:
        told = f"i am {feeling} because {told}" if shape == "C" else f"{told} i am {feeling}."
    return f"{opener} {told}{f' should i {ask}?' if ask else ''}{closer}"


def is_well_formed(completion: str) -> bool:
    """Whether the text is one of the shapes, with or without filler, with any values of the lexicons."""
    return _grammar().fullmatch(completion) is not None


def _who(facts: Mapping[str, str]) -> str:
    if "relation" in facts:
        return f"my {facts['relation']} {facts['name']}" if "name" in facts else f"my {facts['relation']}"
    return facts.get("name", "someone")


def _event(facts: Mapping[str, str], when: str) -> str:
    frame = FRAMES[facts["event"]]
    return (
        frame.event.format(object=facts["object"], when=when)
        if "object" in facts
        else frame.event_vague.format(when=when)
    )


def _wondering(feeling: str | None, ask: str | None) -> str:
    if feeling and ask:
        return f" i feel {feeling} and wonder whether to {ask}."
    if feeling:
        return f" i feel {feeling}."
    return f" i wonder whether to {ask}." if ask else ""


def _one_of(values: Iterable[str]) -> str:
    return "(?:" + "|".join(values) + ")"


@functools.cache
def _grammar() -> re.Pattern[str]:
    """`write_summary` as a regular expression, any value in any slot."""
    name, relation, feeling = _one_of(NAMES), _one_of(RELATIONS), _one_of(FEELINGS)
    ask = _one_of(ask for frame in FRAMES.values() for ask in frame.asks)
    time = f"(?:in {_one_of(MONTHS)}|on {_one_of(DAYS)})"
    who = f"(?:my {relation}(?: {name})?|{name}|someone)"

    def events(when: str) -> str:
        return _one_of(
            text.format(object=_one_of(frame.objects), when=when)
            for frame in FRAMES.values()
            for text in (frame.event, frame.event_vague)
        )

    told = f"{who} {events(f'(?: {time})?')}"
    main = _one_of([f"(?:i am {feeling} because )?{told}", f"{time}, {who} {events('')}"])
    tail = _one_of(
        [
            f"(?: i am {feeling}\\.)?(?: should i {ask}\\?)?",
            f" i feel {feeling} and wonder whether to {ask}\\.",
            f" i feel {feeling}\\.",
            f" i wonder whether to {ask}\\.",
        ]
    )
    return re.compile(f"{_one_of(OPENERS)}? {main}\\.{tail}{_one_of(map(re.escape, CLOSERS))}?")
