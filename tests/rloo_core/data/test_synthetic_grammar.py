import collections
import itertools
import json
import random
import re

import pytest

from rloo_core.data.synthetic.drafts import DEMONSTRATIONS, demonstration, mistake, reference
from rloo_core.data.synthetic.frames import FRAMES
from rloo_core.data.synthetic.gold import gold_reward
from rloo_core.data.synthetic.lexicon import FEELINGS, NAMES, RELATIONS, TIMES
from rloo_core.data.synthetic.posts import SLOTS, write_post
from rloo_core.data.synthetic.summaries import (
    CLOSERS,
    OPENERS,
    OPTIONAL_SLOTS,
    SHAPES,
    is_well_formed,
    write_summary,
)

POSTS = [write_post(random.Random(i)) for i in range(400)]


def without(facts, *slots):
    return {slot: value for slot, value in facts.items() if slot not in slots}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_summary_is_recognised_as_one(shape):
    subsets = [dropped for count in range(7) for dropped in itertools.combinations(OPTIONAL_SLOTS, count)]
    for post, dropped in zip(itertools.cycle(POSTS), subsets, strict=False):
        for opener, closer in [("", ""), (OPENERS[0], ""), ("", CLOSERS[1])]:
            assert is_well_formed(write_summary(without(post.facts, *dropped), shape, opener, closer))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " my boss.",
        " my boss walter walter offered me a job.",
        " walter offered me a job but it is in ladder.",
        " walter offered me a job but it is far away. i am furious",
        "walter offered me a job but it is far away.",
        " walter offered me a job but it is far away. should i take it? should i take it?",
        " in march, walter offered me a job in march but it is far away.",
    ],
)
def test_other_texts_are_not(text):
    assert not is_well_formed(text)


def test_three_shapes_by_hand():
    facts = {"event": "cat", "relation": "aunt", "name": "olga", "object": "tuna", "when": "sunday"}
    facts |= {"feeling": "bitter", "ask": "cook better"}
    told = "my aunt olga lured my cat away with tuna"
    assert write_summary(facts, "A") == f" {told} on sunday. i am bitter. should i cook better?"
    assert write_summary(facts, "B") == f" on sunday, {told}. i feel bitter and wonder whether to cook better."
    assert write_summary(facts, "C") == f" i am bitter because {told} on sunday. should i cook better?"
    assert write_summary({"event": "cat"}, "B") == " someone lured my cat away."


@pytest.mark.parametrize("slot", OPTIONAL_SLOTS)
def test_leaving_out_a_fact_lowers_gold(slot):
    for post in POSTS[:100]:
        for shape in SHAPES:
            whole = gold_reward(write_summary(post.facts, shape), post.facts_column())
            assert gold_reward(write_summary(without(post.facts, slot), shape), post.facts_column()) < whole - 0.4


def test_inventing_is_worse_than_leaving_out_and_a_distractor_lies_between():
    post = next(post for post in POSTS if "name" in post.distractors)
    names = [name for name in NAMES if name not in (post.facts["name"], post.distractors["name"])]
    facts = post.facts_column()
    invented = gold_reward(write_summary({**post.facts, "name": names[0]}), facts)
    distracted = gold_reward(write_summary({**post.facts, "name": post.distractors["name"]}), facts)
    assert invented < distracted < gold_reward(write_summary(without(post.facts, "name")), facts)


def test_a_post_says_its_facts_and_its_distractors():
    for post in POSTS:
        body = post.prompt.split("POST:")[1]
        for slot in SLOTS[1:]:
            assert post.facts[slot] in body
        for slot, value in post.distractors.items():
            assert value in body
            assert value != post.facts[slot]
        assert post.prompt.startswith(f"SUBREDDIT: r/{FRAMES[post.facts['event']].subreddit}\n\nTITLE: ")
        assert post.prompt.endswith("\n\nTL;DR:")


def test_a_post_mentions_no_other_value():
    lexicon = {*NAMES, *RELATIONS, *TIMES, *FEELINGS, *(value for f in FRAMES.values() for value in f.objects)}
    for post in POSTS:
        words = set(post.prompt.split("TITLE:")[1].replace(".", " ").replace(",", " ").replace("?", " ").split())
        assert words & lexicon <= {*post.facts.values(), *post.distractors.values()}


def test_no_value_hides_in_another():
    asks = [ask for frame in FRAMES.values() for ask in frame.asks]
    assert not [(a, b) for a, b in itertools.permutations(asks, 2) if a in b]
    values = [*NAMES, *RELATIONS, *TIMES, *FEELINGS, *(value for f in FRAMES.values() for value in f.objects)]
    assert len(set(values)) == len(values)
    assert not {*values, *asks} & {*FRAMES}


def test_every_frame_is_told_by_its_mark_and_no_other():
    for frame, other in itertools.product(FRAMES.values(), repeat=2):
        for event in (other.event, other.event_vague):
            assert (frame.mark in event.format(object=other.objects[0], when="")) == (frame is other)


def test_references_leave_out_exactly_one_fact():
    for i, post in enumerate(POSTS):
        text = reference(random.Random(i), post)
        assert is_well_formed(text)
        assert sum(post.facts[slot] in text for slot in OPTIONAL_SLOTS) == 5


def test_demonstrations_have_the_documented_mix():
    rng = random.Random(0)
    kept = collections.Counter()
    fillers = (*OPENERS, *CLOSERS)
    drafts = [(post, demonstration(rng, post)) for post in POSTS * 10]
    for post, text in drafts:
        assert is_well_formed(text)
        filled = any(filler in text for filler in fillers)
        right = sum(value in text for value in (post.facts[slot] for slot in OPTIONAL_SLOTS))
        kept["rambling" if filled else right] += 1
    shares = {key: count / len(drafts) for key, count in kept.items()}
    assert sum(DEMONSTRATIONS.values()) == pytest.approx(1.0)
    assert shares[6] == pytest.approx(DEMONSTRATIONS["perfect"], abs=0.03)
    assert shares[3] == pytest.approx(DEMONSTRATIONS["three"], abs=0.02)
    assert shares["rambling"] == pytest.approx(DEMONSTRATIONS["rambling"], abs=0.02)
    # a swapped one keeps five facts right, or four
    swapped = DEMONSTRATIONS["swapped"] / 2
    assert shares[5] == pytest.approx(DEMONSTRATIONS["one"] + swapped, abs=0.03)
    assert shares[4] == pytest.approx(DEMONSTRATIONS["two"] + swapped, abs=0.03)


def test_most_demonstrations_forget_when_it_happened():
    rng = random.Random(0)
    told = [any(time in re.findall(r"\w+", demonstration(rng, post)) for time in TIMES) for post in POSTS * 5]
    assert 0.35 < sum(told) / len(told) < 0.5


def test_mistakes_are_worse_than_demonstrations():
    rng = random.Random(0)
    drafts = {
        write: [gold_reward(write(rng, post), post.facts_column()) for post in POSTS]
        for write in (demonstration, mistake, reference)
    }
    mean = {write: sum(values) / len(values) for write, values in drafts.items()}
    assert mean[mistake] < mean[demonstration] - 0.5
    assert mean[demonstration] < mean[reference]


def test_the_facts_column_is_json():
    post = POSTS[0]
    assert json.loads(post.facts_column()) == {**post.facts, "distractors": list(post.distractors.values())}
