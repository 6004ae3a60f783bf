"""Finding and reading files: formats, names, damage."""

import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from rloo_core.data.files import data_files, split_of_name, table_of_name
from rloo_core.data.readers import read_rows
from rloo_core.data.schema import DroppedRows
from rloo_core.data.sources import read_records
from tests.rloo_core.data.recorder import Recorder, data_settings, write_lines

ROWS = [{"prompt": "Hi, you", "completion": "Hello\n“there”"}, {"prompt": "Why?", "completion": "Because"}]


def write(path, rows):
    """Rows in the format that the name tells."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".csv"):
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        data = "".join(
            ",".join('"' + cell.replace('"', '""') + '"' for cell in line) + "\r\n" for line in cells
        ).encode()
    elif name.endswith(".parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows), sink)
        data = sink.getvalue().to_pybytes()
    elif name.endswith(".jsonl"):
        data = "\n".join(json.dumps(row) for row in rows).encode()
    else:
        data = json.dumps(rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def records_of(path, **changes):
    return read_records(data_settings(path, **changes), DroppedRows(), Recorder())


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet", "jsonl.gz", "json.gz", "csv.gz", "parquet.gz"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    write(path, ROWS)
    assert [dict(row.values) for row in read_rows(path)] == ROWS
    assert [record.row for record in records_of(path)] == ROWS
    assert data_files(data_settings(path)) == [path]


def test_json_in_its_other_shapes(tmp_path):
    path = tmp_path / "rows.json"
    for text in (json.dumps({"data": ROWS}), "\n".join(map(json.dumps, ROWS)), "\ufeff" + json.dumps(ROWS)):
        path.write_text(text, encoding="utf-8")
        assert [dict(row.values) for row in read_rows(path)] == ROWS
    path.write_text(json.dumps(ROWS[0], indent=1))
    assert [dict(row.values) for row in read_rows(path)] == ROWS[:1]


def test_saved_datasets(tmp_path):
    parts = DatasetDict({"train": Dataset.from_list(ROWS[:1]), "test": Dataset.from_list(ROWS[1:])})
    parts.save_to_disk(tmp_path / "saved")
    records = records_of(tmp_path / "saved")
    assert [(record.row, record.split) for record in records] == [(ROWS[0], "train"), (ROWS[1], "test")]
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "more/demonstrations-test")
    assert [record.split for record in records_of(tmp_path / "more")] == ["test", "test"]
    files = data_files(data_settings(tmp_path / "more"))
    assert any(file.suffix == ".arrow" for file in files)
    assert all(file.is_file() for file in files)


def test_broken_lines_are_counted_with_file_and_line(tmp_path):
    good = json.dumps(ROWS[0])
    path = tmp_path / "demonstrations.jsonl"
    path.write_bytes(f"{good}\n{{oops\n\n[1]\n{good}\n".encode() + b'{"prompt": "\xff"}\n')
    dropped = DroppedRows()
    assert len(read_records(data_settings(tmp_path), dropped, Recorder())) == 2
    assert {row["reason"]: row["first"] for row in dropped.rows()} == {
        "not JSON": "demonstrations.jsonl:2",
        "not an object with named columns": "demonstrations.jsonl:4",
        "not UTF-8": "demonstrations.jsonl:6",
    }


def test_csv_rows_of_the_wrong_width_are_counted(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion\na,b\nc\nd,e,f\n" + f'"{"long " * 50_000}",g\n')
    rows = read_rows(path)
    assert [row.problem for row in rows] == ["", *["more or fewer fields than the header"] * 2, ""]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl.gz", "rows.parquet", "rows.csv"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b'["\xff' if name == "rows.json" else gzip.compress(b"x" * 9999)[:20] + b"\xff")
    with pytest.raises(ValueError, match=f"{name} cannot be read as"):
        read_rows(path)


def test_names_tell_table_and_split(tmp_path):
    told = {
        "preferences-train.jsonl": ("preferences", "train"),
        "prompts_test.csv.gz": ("prompts", "test"),
        "demonstrations.parquet": ("demonstrations", None),
        "helpful-base-test.jsonl.gz": (None, "test"),
        "validation-00000-of-00002.parquet": (None, "validation"),
        "latest.jsonl": (None, None),
    }
    assert {name: (table_of_name(tmp_path / name), split_of_name(tmp_path / name)) for name in told} == told


def test_of_a_directory_with_table_names_only_those_are_read(tmp_path):
    write(tmp_path / "prompts-test.jsonl", [{"prompt": "a", "completion": "not read as a demonstration"}])
    write(tmp_path / "demonstrations.csv", ROWS)
    write(tmp_path / "notes.json", [{"prompt": "b"}])
    (tmp_path / "README.md").write_text("hello")
    assert [file.name for file in data_files(data_settings(tmp_path))] == ["demonstrations.csv", "prompts-test.jsonl"]
    assert [(record.table, record.split) for record in records_of(tmp_path)] == [
        ("demonstrations", None),
        ("demonstrations", None),
        ("prompts", "test"),
    ]


def test_several_paths_with_commas(tmp_path):
    write(tmp_path / "a.jsonl", ROWS)
    write_lines(tmp_path / "b.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b"}])
    both = f"{tmp_path / 'a.jsonl'}, {tmp_path / 'b.jsonl'}"
    assert [record.table for record in records_of(both)] == ["demonstrations", "demonstrations", "preferences"]


class TestWrongPaths:
    def test_missing(self, tmp_path):
        with pytest.raises(ValueError, match=r"data.path=.*nowhere does not exist; looked for a directory, a file"):
            data_files(data_settings(tmp_path / "nowhere"))

    def test_null(self):
        with pytest.raises(ValueError, match=r"data.source=hh needs data.path"):
            data_files(data_settings(None, "hh"))

    def test_a_misspelt_file_is_no_hub_id(self):
        with pytest.raises(ValueError, match="does not exist"):
            data_files(data_settings("data/prompts.jsonl"))

    def test_unknown_format(self, tmp_path):
        (tmp_path / "rows.xlsx").write_bytes(b"")
        with pytest.raises(ValueError, match=r"no known format; expected \.jsonl"):
            data_files(data_settings(tmp_path / "rows.xlsx"))

    def test_empty_directory(self, tmp_path):
        with pytest.raises(ValueError, match="holds nothing readable"):
            data_files(data_settings(tmp_path))

    def test_unknown_columns_are_listed(self, tmp_path):
        write_lines(tmp_path / "rows.jsonl", [{"question": "a", "answer": "b"}])
        with pytest.raises(ValueError, match=r"looked for the columns prompt \(prompts\).*columns answer, question"):
            records_of(tmp_path)

    def test_token_ids_are_not_text(self, tmp_path):  # T12 of the faults: a template on tokenised data
        write_lines(tmp_path / "rows.jsonl", [{"input_ids": [1, 2]}])
        with pytest.raises(ValueError, match="already token ids cannot be used"):
            records_of(tmp_path)

    def test_other_files_beside_good_ones_are_said(self, tmp_path):
        write(tmp_path / "a.jsonl", ROWS)
        write_lines(tmp_path / "b.jsonl", [{"question": "a"}])
        observer = Recorder()
        assert len(read_records(data_settings(tmp_path), DroppedRows(), observer)) == 2
        assert any("b.jsonl (1 rows, columns question)" in message for message in observer.messages)

    def test_hub_ids_and_synthetic_have_no_local_files(self):
        assert data_files(data_settings("Anthropic/hh-rlhf", "hh")) == []
        assert data_files(data_settings(None, "synthetic")) == []


class TestHub:
    """No network here: the library's own call is replaced."""

    def test_rows_and_splits(self, monkeypatch):
        parts = DatasetDict({"train_prefs": Dataset.from_list(ROWS[:1]), "test": Dataset.from_list(ROWS[1:])})
        monkeypatch.setattr("datasets.load_dataset", lambda name: parts)
        records = records_of("owner/name")
        assert [(record.row, record.split) for record in records] == [(ROWS[0], "train"), (ROWS[1], "test")]
        assert records[1].where == "owner/name[test]:0"

    def test_out_of_reach(self, monkeypatch):
        def fail(name):
            raise ConnectionError("no route")

        monkeypatch.setattr("datasets.load_dataset", fail)
        with pytest.raises(ValueError, match=r"owner/name is no local path, .*could not be loaded: ConnectionError"):
            records_of("owner/name")


def test_listing_files_loads_nothing_heavy():
    heavy = "{'torch', 'transformers', 'datasets', 'pyarrow'}"
    code = f"import sys, rloo_core.data.files; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
