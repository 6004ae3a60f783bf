"""Posts: a story frame, its facts, and whatever else people write around them."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass

from rloo_core.data.synthetic.frames import FRAMES, Frame
from rloo_core.data.synthetic.lexicon import FEELINGS, NAMES, RELATIONS, TIMES, pronouns, relations_of, with_preposition

SLOTS = ("event", "relation", "name", "object", "when", "feeling", "ask")

FEELING_SENTENCES = (
    "i am {feeling}.",
    "honestly, i feel {feeling}.",
    "i have been {feeling} ever since.",
    "it leaves me {feeling}.",
)
ASK_SENTENCES = (
    "should i {ask}?",
    "my plan is to {ask}. too much?",
    "would it be wrong to {ask}?",
    "half of me wants to {ask}. thoughts?",
)
DISTRACTOR_SENTENCES = {
    "person": ("my {relation2} {name2} says i am too kind.", "my {relation2} {name2} laughed for an hour."),
    "mood": ("{name2} next door is {feeling2} about it.", "{name2} at work seems {feeling2}."),
    "time": ("{when2} all was still fine.", "it was just as bad {when2}."),
    "past": ("at first i was {feeling2}.", "nobody else looks {feeling2}."),
    "advice": ("{name2} says i should {ask2}.", "i will not {ask2}, that is certain."),
}


@dataclass(frozen=True)
class Post:
    """A post and what it says.

    Attributes:
        prompt: The text up to and including "TL;DR:".
        facts: Value of each of `SLOTS`, e.g. {"event": "loan", "name": "walter", "when": "march", …}.
        distractors: Values that the post mentions without their being its facts, by slot.
    """

    prompt: str
    facts: dict[str, str]
    distractors: dict[str, str]

    def facts_column(self) -> str:
        """What the gold reward needs to know, as JSON."""
        return json.dumps({**self.facts, "distractors": list(self.distractors.values())})


def write_post(rng: random.Random) -> Post:
    """One post, drawn from everything the grammar can say."""
    frame = FRAMES[rng.choice(list(FRAMES))]
    facts = _draw_facts(rng, frame)
    spare = _draw_spare(rng, facts)
    values = {**facts, **{f"{slot}2": value for slot, value in spare.items()}, **pronouns(facts["name"])}
    values["when"] = with_preposition(facts["when"])
    values["when2"] = with_preposition(spare["when"])
    distracting = _distracting_sentences(rng, frame)
    middle = [rng.choice(FEELING_SENTENCES), *distracting]
    if rng.random() < 0.5:
        middle.append(rng.choice(frame.colours))
    rng.shuffle(middle)
    body = " ".join([rng.choice(frame.stories), *middle, rng.choice(ASK_SENTENCES)]).format(**values)
    title = rng.choice(frame.titles).format(**values)
    prompt = f"SUBREDDIT: r/{frame.subreddit}\n\nTITLE: {title}\n\nPOST: {body}\n\nTL;DR:"
    mentioned = " ".join(distracting)
    return Post(prompt, facts, {slot: value for slot, value in spare.items() if f"{{{slot}2}}" in mentioned})


def other_value(rng: random.Random, facts: Mapping[str, str], slot: str) -> str:
    """A value that could stand in this slot of the same story, but is not the fact."""
    frame = FRAMES[facts["event"]]
    values = {
        "event": tuple(FRAMES),
        "relation": RELATIONS,
        "name": NAMES,
        "object": frame.objects,
        "when": TIMES,
        "feeling": FEELINGS,
        "ask": frame.asks,
    }[slot]
    return rng.choice([value for value in values if value != facts[slot]])


def _draw_facts(rng: random.Random, frame: Frame) -> dict[str, str]:
    name = rng.choice(NAMES)
    return {
        "event": frame.name,
        "relation": rng.choice(relations_of(name)),
        "name": name,
        "object": rng.choice(frame.objects),
        "when": rng.choice(TIMES),
        "feeling": rng.choice(FEELINGS),
        "ask": rng.choice(frame.asks),
    }


def _draw_spare(rng: random.Random, facts: dict[str, str]) -> dict[str, str]:
    """Values of the same lexicons that are none of the facts, one a slot."""
    name = other_value(rng, facts, "name")
    relation = rng.choice([relation for relation in relations_of(name) if relation != facts["relation"]])
    rest = {slot: other_value(rng, facts, slot) for slot in ("object", "when", "feeling", "ask")}
    return {"relation": relation, "name": name, **rest}


def _distracting_sentences(rng: random.Random, frame: Frame) -> list[str]:
    """Two sentences of different kinds."""
    pools = [*DISTRACTOR_SENTENCES.values(), frame.asides]
    return [rng.choice(pool) for pool in rng.sample(pools, 2)]
