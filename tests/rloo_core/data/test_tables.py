import pytest

from rloo_core.data.schema import COLUMNS
from rloo_core.data.tables import read_table, table_path, write_table

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    "rows",
    [
        [{"prompt": "a", "reference": None}, {"prompt": "“ü”", "reference": "b"}],
        [{"prompt": TURNS, "reference": "b"}, {"prompt": TURNS[:1], "reference": None}],
        [{"prompt": "a", "reference": None, "facts": {"who": "b"}, "n": 1, "tags": ["x"], "none": None, "on": True}],
    ],
)
def test_rows_come_back_as_they_were(tmp_path, rows):
    path = table_path(tmp_path, "prompts", "train")
    write_table(path, "prompts", rows)
    assert read_table(tmp_path, "prompts", "train") == rows


def test_further_columns_of_several_types_become_json(tmp_path):
    rows = [{"prompt": "a", "x": 1, "e": {}}, {"prompt": "b", "x": "1", "e": {}}]
    write_table(table_path(tmp_path, "prompts", "train"), "prompts", rows)
    assert [(row["x"], row["e"]) for row in read_table(tmp_path, "prompts", "train")] == [("1", "{}"), ('"1"', "{}")]


@pytest.mark.parametrize("table", COLUMNS)
def test_an_empty_table_is_a_file_too(tmp_path, table):
    write_table(table_path(tmp_path, table, "test"), table, [])
    assert read_table(tmp_path, table, "test") == []


def test_same_rows_same_bytes(tmp_path):
    rows = [{"prompt": TURNS, "completion": "c", "facts": {"who": "b"}}] * 50
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write_table(first, "demonstrations", rows)
    write_table(second, "demonstrations", list(rows))
    assert first.read_bytes() == second.read_bytes()


def test_what_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="is missing; run the data stage first"):
        read_table(tmp_path, "prompts", "train")
    with pytest.raises(ValueError, match="no table prompts-dev"):
        read_table(tmp_path, "prompts", "dev")
