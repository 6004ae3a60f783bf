import itertools
import json

import pytest

from rloo_core.data.synthetic import gold_reward, gold_rewards

FACTS = {
    "event": "loan",
    "relation": "neighbour",
    "name": "walter",
    "object": "ladder",
    "when": "march",
    "feeling": "furious",
    "ask": "send a bill",
    "distractors": ["nora", "drill"],
}
PERFECT = " my neighbour walter borrowed my ladder in march and never returned it. i am furious. should i send a bill?"


def test_a_perfect_summary_by_hand():
    # 7 facts; 13 + 4 + 6 words and marks: -2 + 7 * 0.7 - 23 * 0.02
    assert gold_reward(PERFECT, FACTS) == pytest.approx(2.44)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        # the feeling left out, 4 tokens fewer: -2 + 6 * 0.7 - 19 * 0.02
        (PERFECT.replace(" i am furious.", ""), 1.82),
        # a name the post never mentions: -2 + 6 * 0.7 - 0.8 - 23 * 0.02
        (PERFECT.replace("walter", "emil"), 0.94),
        # a name the post mentions for somebody else: -2 + 6 * 0.7 - 0.6 - 23 * 0.02
        (PERFECT.replace("walter", "nora"), 1.14),
        # ten tokens more, six of them over the budget of 27: 2.44 - 10 * 0.02 - 6 * 0.1, and not a shape: - 0.8
        (PERFECT + " and that is all that i can say.", 2.44 - 0.18 - 0.5 - 0.8),
        # cut off: 2 facts gone, "should i send a" is no question: -2 + 6 * 0.7 - 21 * 0.02 - 0.8 - 0.4
        (PERFECT.removesuffix(" bill?"), 0.58),
        # a fact said twice, no shape: 2.44 - 0.02 - 0.4 - 0.8
        (PERFECT.replace("ladder", "ladder ladder"), 1.22),
        # nothing: -2 - 0.8 - 0.4
        ("", -3.2),
    ],
)
def test_faults_by_hand(completion, expected):
    assert gold_reward(completion, FACTS) == pytest.approx(expected)


def test_another_story_is_an_invention():
    told = " my neighbour walter lured my cat away in march. i am furious."
    # relation, name, time, feeling kept: -2 + 4 * 0.7 - 0.8 (event) - 14 * 0.02
    assert gold_reward(told, FACTS) == pytest.approx(-0.28)


def test_longer_is_worse_and_ever_more_so():
    filler = [gold_reward(PERFECT + " well" * count, FACTS) for count in range(1, 20)]
    steps = [before - after for before, after in itertools.pairwise(filler)]
    assert all(step > 0 for step in steps)
    assert steps[-1] > steps[0]


def test_the_end_is_worth_something():
    assert gold_reward(PERFECT[:-1], FACTS) < gold_reward(PERFECT, FACTS)


def test_facts_come_as_text_or_parsed_and_other_columns_are_ignored():
    single = gold_reward(PERFECT, FACTS)
    columns = {"reference": ["x", "y"], "trainer_state": [None, None]}
    batch = gold_rewards(["p", "p"], [PERFECT, ""], [json.dumps(FACTS)] * 2, **columns)
    assert batch == [single, gold_reward("", FACTS)]


def test_facts_of_another_task_are_refused():
    with pytest.raises(ValueError, match=r"needs the facts of a synthetic post.*data\.source=synthetic"):
        gold_reward(PERFECT, '{"answer": 42}')
