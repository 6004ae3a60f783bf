"""The law: no prompt in two splits. And what is decided by a hash of the prompt."""

import itertools
import random

import pytest

from rloo_core.data.schema import SPLITS, DroppedRows, Record
from rloo_core.data.splits import assign_splits, capped, with_declared_splits, without_repeated_prompts


def record(prompt, split=None, table="prompts"):
    return Record(table, {"prompt": str(prompt)}, f"{prompt}", split)


def assigned(records, validation=0.2, test=0.2, seed=0):
    dropped = DroppedRows()
    return assign_splits(with_declared_splits(records), validation, test, seed, dropped), dropped


def check_disjoint(records):
    prompts = {split: {r.key for r in records if r.split == split} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not prompts[one] & prompts[other]


@pytest.mark.parametrize("seed", range(20))
def test_no_prompt_in_two_splits_whatever_the_files_say(seed):
    rng = random.Random(seed)
    tables = ("prompts", "demonstrations", "preferences")
    splits = [None, *SPLITS] if seed % 2 else ["train", *SPLITS]
    records = [record(rng.randrange(60), rng.choice(splits), rng.choice(tables)) for _ in range(300)]
    kept, dropped = assigned(records, seed=seed)
    check_disjoint(kept)
    assert len(kept) + dropped.total == len(records)


def test_test_beats_validation_beats_train_and_what_leaks_is_counted():
    records = [record("a", "train"), record("a", "test"), record("b", "validation"), record("b", "train")]
    records += [record("c", "validation"), record("c", "test")]
    kept, dropped = assigned(records, 0.0, 0.0)
    assert [(r.key, r.split) for r in kept] == [("a", "test"), ("b", "validation"), ("c", "test")]
    assert dropped.by_reason() == {
        "prompt also in the test split": {"prompts": 2},
        "prompt also in the validation split": {"prompts": 1},
    }


def test_a_leak_over_tables_is_a_leak():
    kept, dropped = assigned([record("a", "test"), record("a", "train", "preferences")], 0.0, 0.0)
    assert [r.table for r in kept] == ["prompts"]
    assert dropped.total == 1


def test_files_own_splits_stay_and_the_missing_one_is_cut_from_train():
    records = [record(i, "train") for i in range(1000)] + [record(i, "test") for i in range(1000, 1100)]
    kept, dropped = assigned(records, 0.2, 0.5)
    sizes = {split: sum(r.split == split for r in kept) for split in SPLITS}
    assert sizes["test"] == 100
    assert abs(sizes["validation"] - 200) < 50
    assert dropped.total == 0


def test_fractions_and_independence_of_order_and_of_other_rows():
    records = [record(i) for i in range(2000)]
    split = {r.key: r.split for r in assigned(records)[0]}
    for name in ("validation", "test"):
        assert abs(sum(value == name for value in split.values()) / 2000 - 0.2) < 0.03
    part = [record(i) for i in range(1999, 1000, -1)]
    assert all(split[r.key] == r.split for r in assigned(part)[0])
    assert split != {r.key: r.split for r in assigned(records, seed=1)[0]}


def test_rows_without_a_split_are_for_training_where_their_table_has_some():
    kept, _ = assigned([record("a"), record("b", "test"), record("c", "train")], 0.0, 0.9)
    assert [r.split for r in kept] == ["train", "test", "train"]


def test_fractions_must_leave_something():
    with pytest.raises(ValueError, match=r"sum below 1\); got 0.5 \+ 0.5"):
        assigned([record(1)], 0.5, 0.5)


def test_a_repeated_prompt_is_kept_once_and_only_in_prompts():
    dropped = DroppedRows()
    records = [record("a"), record("a"), record("a", table="preferences"), record("a", table="preferences")]
    assert len(without_repeated_prompts(records, dropped)) == 3
    assert dropped.by_reason() == {"prompt repeated": {"prompts": 1}}


def test_a_cap_shares_its_rows_between_splits_and_picks_the_same_prompts_everywhere():
    records = [record(i, table=table) for table in ("prompts", "preferences") for i in range(500)]
    split, dropped = assigned(records)
    kept = capped(split, 40, 0.2, 0.1, 0, dropped)
    prompts = {table: [r.key for r in kept if r.table == table] for table in ("prompts", "preferences")}
    assert prompts["prompts"] == prompts["preferences"] == sorted(prompts["prompts"], key=int)
    assert [sum(r.split == s for r in kept if r.table == "prompts") for s in SPLITS] == [28, 8, 4]
    assert dropped.by_reason() == {"over data.max_rows": {"preferences": 460, "prompts": 460}}
    again = capped(split[::-1], 40, 0.2, 0.1, 0, DroppedRows())
    assert {(r.table, r.key) for r in again} == {(r.table, r.key) for r in kept}
