"""A data source from outside: a function that returns tables, in place of files."""

import pytest

from rloo_core.data.schema import DroppedRows
from rloo_core.data.sources import derived, read_records
from tests.rloo_core.data.recorder import Recorder, data_settings

MODULE = """
def tables(path, seed):
    split = ("train", "train", "test")
    pairs = [{"prompt": f"p{i}", "chosen": "good", "rejected": "bad", "split": split[i]} for i in range(3)]
    return {"preferences": pairs, "prompts": [{"prompt": path or "none", "reference": str(seed), "topic": "x"}]}

def broken_rows(path, seed):
    return {"prompts": [{"prompt": "fine"}, "text", {"prompt": "odd", "split": "dev"}, {"nothing": 1}]}

def a_list(path, seed): return [1]
def other_tables(path, seed): return {"pairs": []}
def failing(path, seed): raise KeyError("nope")
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_tables.py").write_text(MODULE)


def read(function, path=None, **changes):
    dropped = DroppedRows()
    found = read_records(data_settings(path, f"my_tables:{function}", **changes), dropped, Recorder())
    return found, dropped


def test_rows_with_their_splits_become_records_and_what_is_missing_is_derived():
    found, dropped = read("tables", "where", seed=7)
    assert [(r.table, r.split, r.row["prompt"]) for r in found] == [
        ("preferences", "train", "p0"), ("preferences", "train", "p1"), ("preferences", "test", "p2"),
        ("prompts", None, "where"),
    ]  # fmt: skip
    assert found[-1].row == {"prompt": "where", "reference": "7", "topic": "x"}
    assert dropped.total == 0
    demonstrations = [r.row["completion"] for r in derived(found, Recorder()) if r.table == "demonstrations"]
    assert demonstrations == ["good"] * 3


def test_rows_that_cannot_be_used_are_counted():
    found, dropped = read("broken_rows")
    assert [r.row["prompt"] for r in found] == ["fine"]
    assert dropped.total == 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("a_list", "must return a dict from some of .* to lists of rows; got list"),
        ("other_tables", "got the keys pairs"),
        ("failing", "data.source=my_tables:failing raised KeyError: 'nope'"),
    ],
)
def test_what_is_no_source_is_told_by_name(function, message):
    with pytest.raises(ValueError, match=message):
        read(function)
