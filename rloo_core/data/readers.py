"""Rows out of files, as they stand there: JSON lines, JSON, CSV, Parquet, saved datasets, hub datasets.

A line that cannot be read is a row with a problem; a file that cannot be read is an error. Local files are read without
the datasets library, which keeps copies in a cache and gives up on a whole file where one line is broken. Nothing here
runs code that comes with a dataset.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rloo_core.data.files import format_of, split_of_name, table_of_name
from rloo_core.data.schema import SourceRow


def read_rows(entry: Path | str) -> list[SourceRow]:
    """All rows of a file, a saved dataset directory, or a hub dataset.

    Raises:
        ValueError: If it cannot be read; the message names it.
    """
    if isinstance(entry, str):
        return list(_hub_rows(entry))
    try:
        return list(_saved_rows(entry) if entry.is_dir() else _file_rows(entry))
    except (OSError, EOFError, ValueError, csv.Error, zlib.error) as error:  # damaged archives raise any of these
        raise ValueError(f"{entry} cannot be read as {format_of(entry) or 'a saved dataset'}: {error}") from error


def _file_rows(path: Path) -> Iterator[SourceRow]:
    data = path.read_bytes()
    if path.name.lower().endswith(".gz"):
        data = gzip.decompress(data)
    read = {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet}[str(format_of(path))]
    table, split = table_of_name(path), split_of_name(path)
    for number, value in read(data):
        where = f"{path.name}:{number}"
        if isinstance(value, Mapping):
            yield SourceRow(value, where, table, split)
        else:
            problem = value if isinstance(value, _Problem) else "not an object with named columns"
            yield SourceRow({}, where, table, split, str(problem))


class _Problem(str):
    """Why a line could not be read."""


def _json_lines(data: bytes) -> Iterator[tuple[int, Any]]:
    """(line number from 1, value) of every line that is not blank."""
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return _Problem("not UTF-8")
    except (json.JSONDecodeError, RecursionError):
        return _Problem("not JSON")


def _json(data: bytes) -> Iterator[tuple[int, Any]]:
    """(row number from 1, value) of a list of rows, of the only list in an object, or of JSON lines in a .json file."""
    text = data.decode("utf-8-sig")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith("["):
            raise
        yield from _json_lines(data)
        return
    lists = list(content.items()) if isinstance(content, dict) else []
    if len(lists) == 1 and lists[0][0] != "messages" and isinstance(lists[0][1], list):
        content = lists[0][1]
    yield from enumerate(content if isinstance(content, list) else [content], start=1)


def _csv(data: bytes) -> Iterator[tuple[int, Any]]:
    """(line number at a row's end, row); every value is text, as CSV knows no types."""
    limit = csv.field_size_limit(sys.maxsize)  # posts may be longer than the default of 128 KiB
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        for row in reader:
            complete = None not in row and None not in row.values()
            yield reader.line_num, row if complete else _Problem("more or fewer fields than the header")
    finally:
        csv.field_size_limit(limit)


def _parquet(data: bytes) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    yield from enumerate(pq.read_table(pa.BufferReader(data)).to_pylist(), start=1)


def _saved_rows(path: Path) -> Iterator[SourceRow]:
    from datasets import load_from_disk

    yield from _dataset_rows(load_from_disk(str(path)), path.name, table_of_name(path), split_of_name(path))


def _hub_rows(name: str) -> Iterator[SourceRow]:
    """Rows of a dataset on the hub (cached where the datasets library keeps such files; it runs no scripts)."""
    from datasets import load_dataset

    try:
        loaded = load_dataset(name)
    except Exception as error:  # the hub's client raises errors of several libraries
        raise ValueError(
            f"data.path={name} is no local path, and as the id of a dataset on the hub it could not be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    yield from _dataset_rows(loaded, name, None, None)


def _dataset_rows(loaded: Any, name: str, table: str | None, split: str | None) -> Iterator[SourceRow]:
    """Rows of a `Dataset`, or of every split of a `DatasetDict`."""
    parts = loaded if isinstance(loaded, dict) else {split: loaded}
    for part, dataset in parts.items():
        part_split = (split_of_name(Path(str(part))) if part else None) or split
        part_table = table or (table_of_name(Path(str(part))) if part else None)
        for index, row in enumerate(dataset.with_format(None)):
            yield SourceRow(row, f"{name}[{part or 'rows'}]:{index}", part_table, part_split)
