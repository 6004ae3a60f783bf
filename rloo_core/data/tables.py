"""The three tables on disk: one Parquet file a table and split, the same bytes for the same rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rloo_core.data.schema import COLUMNS, SPLITS, TABLES, Row

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def table_path(data_dir: Path, table: str, split: str) -> Path:
    return data_dir / "tables" / f"{table}-{split}.parquet"


def read_table(data_dir: Path, table: str, split: str) -> list[Row]:
    """Rows of one table and split of a data stage's output; no rows where the source had none.

    Args:
        data_dir: Output directory of the data stage.
        table: "prompts" {prompt, reference}, "demonstrations" {prompt, completion} or "preferences" {prompt, chosen,
            rejected}.
        split: "train", "validation" or "test".

    Returns:
        Rows: `prompt` is text or a list of messages, `reference` text or None, the other columns of the contract text.
        Further columns of the source are there too.

    Raises:
        ValueError: If there is no such table or split, or no such output.
    """
    if table not in TABLES or split not in SPLITS:
        raise ValueError(f"There is no table {table}-{split}; tables are {TABLES}, splits {SPLITS}.")
    path = table_path(data_dir, table, split)
    if not path.is_file():
        raise ValueError(f"{data_dir} is not the output of a data stage: {path} is missing; run the data stage first.")
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def write_table(path: Path, table: str, rows: Sequence[Row]) -> None:
    """Write rows as Parquet, also when there are none; further columns keep their types, or become JSON text."""
    names = dict.fromkeys([*COLUMNS[table], *(name for row in rows for name in row)])
    columns = {name: _column(table, name, [row.get(name) for row in rows]) for name in names}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, compression="zstd")


def _column(table: str, name: str, values: list[Any]) -> pa.Array:
    if name in COLUMNS[table]:
        messages = name == "prompt" and any(not isinstance(value, str) for value in values)
        return pa.array(values, MESSAGES if messages else pa.string())
    try:
        array = pa.array(values)
        pq.write_table(pa.table({name: array}), pa.BufferOutputStream())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):  # several types, or an empty object
        array = pa.array([json.dumps(value, ensure_ascii=False, sort_keys=True, default=str) for value in values])
    return array
