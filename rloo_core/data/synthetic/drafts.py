"""Summaries of every quality: references, demonstrations, and the mistakes a model makes."""

import random

from rloo_core.data.synthetic.posts import Post, other_value
from rloo_core.data.synthetic.summaries import CLOSERS, OPENERS, OPTIONAL_SLOTS, SHAPES, write_summary

DEMONSTRATIONS = {"perfect": 0.22, "one": 0.22, "two": 0.18, "three": 0.15, "swapped": 0.09, "rambling": 0.14}
MISTAKES = ("wrong", "cut", "stutter", "gap", "tangle")
EDITS = {"dropped": 0.35, "wrong": 0.15, "cut": 0.1, "stutter": 0.2, "gap": 0.2}
SHAPE_WEIGHTS = (0.5, 0.25, 0.25)
FORGETFULNESS = {"when": 10, "relation": 1, "name": 1, "object": 1, "feeling": 1, "ask": 1}


def reference(rng: random.Random, post: Post) -> str:
    """The reference: well formed, nothing invented, exactly one fact left out."""
    forgotten = rng.choice(OPTIONAL_SLOTS)
    kept = {slot: value for slot, value in post.facts.items() if slot != forgotten}
    return write_summary(kept, rng.choices(SHAPES, SHAPE_WEIGHTS)[0])


def demonstration(rng: random.Random, post: Post) -> str:
    """A summary of the mixed quality that people write.

    `DEMONSTRATIONS` holds the shares: "perfect" says all facts; "one", "two", "three" leave out as many; "swapped" says
    one thing wrong (what someone else in the post is, where there is such a value) and may leave out one more;
    "rambling" leaves out two and fills the space.

    People forget mostly when it happened (`FORGETFULNESS`): more than half of the demonstrations do not say it. So the
    most likely summary is not the best one, and greedy decoding has something to learn too.
    """
    kind = rng.choices(list(DEMONSTRATIONS), list(DEMONSTRATIONS.values()))[0]
    shape = rng.choices(SHAPES, SHAPE_WEIGHTS)[0]
    if kind == "swapped":
        facts = _with_one_wrong(rng, post.facts, post.distractors, OPTIONAL_SLOTS)
        return write_summary(_without(rng, facts, rng.choice((0, 1))), shape)
    if kind == "rambling":
        opener, closer = rng.choice(((rng.choice(OPENERS), ""), ("", rng.choice(CLOSERS))))
        return write_summary(_without(rng, post.facts, 2), rng.choice("AC"), opener, closer)
    return write_summary(_without(rng, post.facts, {"perfect": 0, "one": 1, "two": 2, "three": 3}[kind]), shape)


def mistake(rng: random.Random, post: Post) -> str:
    """A summary with a mistake of the kind a small model makes.

    Up to two wrong values (also a wrong event), a text cut off, a word or the last words said twice, a word missing, or
    two summaries run together.
    """
    kind = rng.choice(MISTAKES)
    if kind == "wrong":
        facts = _with_one_wrong(rng, post.facts, post.distractors, ("event", *OPTIONAL_SLOTS, *OPTIONAL_SLOTS))
        if rng.random() < 0.5:
            facts = _with_one_wrong(rng, facts, {}, OPTIONAL_SLOTS)
        return write_summary(_without(rng, facts, rng.choice((0, 0, 1))), rng.choices(SHAPES, SHAPE_WEIGHTS)[0])
    draft = demonstration(rng, post)
    return _tangled(rng, draft, demonstration(rng, post)) if kind == "tangle" else _mangled(rng, draft, kind)


def edited_pair(rng: random.Random, post: Post) -> tuple[str, str]:
    """A summary and the same one after a single edit: one value wrong, one fact gone, or words cut, doubled or lost.

    Pairs that differ in one thing teach a reward model what that thing is worth; drafts that differ in everything teach
    it little a pair.
    """
    facts, shape = _without(rng, post.facts, rng.choice((0, 0, 1, 2))), rng.choices(SHAPES, SHAPE_WEIGHTS)[0]
    draft = write_summary(facts, shape)
    kind = rng.choices(list(EDITS), list(EDITS.values()))[0]
    if kind == "wrong":
        tempting = {slot: value for slot, value in post.distractors.items() if slot in facts}
        return draft, write_summary(_with_one_wrong(rng, facts, tempting, OPTIONAL_SLOTS), shape)
    if kind == "dropped":
        return draft, write_summary(_without(rng, facts, 1), shape)
    return draft, _mangled(rng, draft, kind)


def _mangled(rng: random.Random, draft: str, kind: str) -> str:
    """A draft cut off, with a word or the last words said twice, or with a word missing."""
    words = draft.split(" ")[1:]
    at = rng.randrange(2, len(words))
    if kind == "cut":
        words = words[:at]
    elif kind == "stutter":
        words = words[:at] + words[at - rng.choice((1, 1, 2, 3)) :] if at > 3 else words[:at] + words[at - 1 :]
    else:
        words = words[: at - 1] + words[at:]
    return " " + " ".join(words)


def _tangled(rng: random.Random, draft: str, other: str) -> str:
    """The beginning of one draft and the end of another."""
    words = draft.split(" ")[1:]
    at = rng.randrange(2, len(words))
    return " " + " ".join(words[:at] + other.split(" ")[-min(at, 8) :])


def _without(rng: random.Random, facts: dict[str, str], count: int) -> dict[str, str]:
    kept = dict(facts)
    for _ in range(count):
        slots = [slot for slot in OPTIONAL_SLOTS if slot in kept]
        del kept[rng.choices(slots, [FORGETFULNESS[slot] for slot in slots])[0]]
    return kept


def _with_one_wrong(
    rng: random.Random, facts: dict[str, str], distractors: dict[str, str], slots: tuple[str, ...]
) -> dict[str, str]:
    """The facts with one of them changed, half of the time to a distractor if there is one."""
    tempting = [slot for slot in distractors if slot in slots]
    if tempting and rng.random() < 0.5:
        slot = rng.choice(tempting)
        return {**facts, slot: distractors[slot]}
    slot = rng.choice([slot for slot in slots if slot in facts])
    wrong = {**facts, slot: other_value(rng, facts, slot)}
    if slot == "event":  # the object and the plan belong to the right story
        del wrong["object"], wrong["ask"]
    return wrong
