import math
import random
import statistics

import pytest

from rloo_core.data.synthetic import build_tables, gold_reward
from rloo_core.data.synthetic.posts import write_post
from rloo_core.data.synthetic.tables import preference
from rloo_core.settings import SyntheticSettings


def sizes(**changes):
    rows = {"prompts": 60, "demonstrations": 70, "preferences": 80, "validation": 20, "test": 30}
    return SyntheticSettings(**{**rows, "label_temperature": 0.5, **changes})


@pytest.fixture(scope="module")
def tables():
    return build_tables(sizes(), seed=0)


def test_tables_splits_sizes_and_columns(tables):
    assert {table: {split: len(rows) for split, rows in splits.items()} for table, splits in tables.items()} == {
        "prompts": {"test": 30, "validation": 20, "train": 60},
        "demonstrations": {"validation": 20, "train": 70},
        "preferences": {"validation": 20, "train": 80},
    }
    judged = {"chosen_gold", "rejected_gold", "label_flipped"}
    assert tables["prompts"]["test"][0].keys() == {"prompt", "reference", "facts"}
    assert tables["demonstrations"]["train"][0].keys() == {"prompt", "completion", "facts"}
    assert tables["preferences"]["train"][0].keys() == {"prompt", "chosen", "rejected", "facts"} | judged


def test_no_post_is_told_twice(tables):
    rows = [row for splits in tables.values() for split in splits.values() for row in split]
    assert len({row["prompt"] for row in rows}) == len(rows)
    assert len({row["facts"].split(', "distractors"')[0] for row in rows}) == len(rows)


def test_a_post_whose_facts_were_told_is_drawn_again(monkeypatch):
    monkeypatch.setattr(
        "rloo_core.data.synthetic.tables.write_post", lambda rng: write_post(random.Random(rng.choice(range(30))))
    )
    tables = build_tables(sizes(prompts=5, demonstrations=5, preferences=5, validation=2, test=2), seed=0)
    rows = [row for splits in tables.values() for split in splits.values() for row in split]
    assert len({row["prompt"] for row in rows}) == len(rows) == 23


def test_completions_start_with_a_space_and_pairs_differ(tables):
    assert all(row["completion"].startswith(" ") for row in tables["demonstrations"]["train"])
    for row in tables["preferences"]["train"]:
        assert row["chosen"] != row["rejected"]
        assert row["chosen"].startswith(" ")
        assert row["rejected"].startswith(" ")
        assert row["chosen_gold"] == gold_reward(row["chosen"], row["facts"])
        assert row["rejected_gold"] == gold_reward(row["rejected"], row["facts"])
        assert row["label_flipped"] == (row["chosen_gold"] < row["rejected_gold"])


def test_the_seed_decides(tables):
    assert build_tables(sizes(), seed=0) == tables
    other = build_tables(sizes(), seed=1)
    assert not {row["prompt"] for row in other["prompts"]["test"]} & {
        row["prompt"] for row in tables["prompts"]["test"]
    }


def test_sizes_do_not_move_other_rows(tables):
    grown = build_tables(sizes(prompts=90, preferences=10), seed=0)
    assert grown["prompts"]["test"] == tables["prompts"]["test"]
    assert grown["prompts"]["train"][:60] == tables["prompts"]["train"]
    assert grown["demonstrations"] == tables["demonstrations"]
    assert grown["preferences"]["train"] == tables["preferences"]["train"][:10]


@pytest.mark.parametrize("temperature", [0.25, 1.0])
def test_labels_are_flipped_as_often_as_bradley_terry_says(temperature):
    pairs = [preference(random.Random(i), write_post(random.Random(-i)), temperature) for i in range(4000)]
    margins = [abs(pair["chosen_gold"] - pair["rejected_gold"]) for pair in pairs]
    expected = [1 / (1 + math.exp(margin / temperature)) for margin in margins if margin > 0]
    flipped = [pair["label_flipped"] for pair, margin in zip(pairs, margins, strict=True) if margin > 0]
    error = 4 * math.sqrt(sum(p * (1 - p) for p in expected)) / len(expected)
    assert statistics.mean(flipped) == pytest.approx(statistics.mean(expected), abs=error)


def test_a_judge_at_temperature_zero_is_right():
    pairs = [preference(random.Random(i), write_post(random.Random(-i)), 0.0) for i in range(200)]
    assert not any(pair["label_flipped"] for pair in pairs)


def test_the_default_judge_agrees_with_gold_about_six_times_in_seven():
    pairs = [preference(random.Random(i), write_post(random.Random(-i)), 0.5) for i in range(2000)]
    assert 0.82 < 1 - statistics.mean(pair["label_flipped"] for pair in pairs) < 0.90
