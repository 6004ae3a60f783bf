"""From what `data.source` and `data.path` name to records in the columns of the three tables."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rloo_core.data import hh, records, tldr
from rloo_core.data.files import data_entries
from rloo_core.data.readers import read_rows
from rloo_core.data.schema import COLUMNS, DroppedRows, Record, SourceRow, UnusableRowError
from rloo_core.extensions import load_extension
from rloo_core.observer import Observer
from rloo_core.settings import DataSettings


@dataclass(frozen=True)
class Parser:
    """How a source's rows are recognised by their columns, turned into records, and described to a person."""

    table_of: Callable[[Set[str]], str | None]
    parse: Callable[[SourceRow, str], Record]
    looked_for: str


PARSERS = {
    "hh": Parser(hh.table_of, hh.parse, hh.LOOKED_FOR),
    "tldr": Parser(tldr.table_of, tldr.parse, tldr.LOOKED_FOR),
    "tables": Parser(records.table_of, records.parse, records.LOOKED_FOR),
}


def read_records(settings: DataSettings, dropped: DroppedRows, observer: Observer) -> list[Record]:
    """All usable rows of the source, as they are, before anything is derived or filtered.

    Raises:
        ValueError: If nothing is found at `data.path`, or nothing there has the columns of this source.
    """
    if settings.source == "synthetic":
        return _synthetic(settings)
    if settings.source not in PARSERS:
        return _from_function(settings, dropped)
    parser = PARSERS[settings.source]
    found: list[Record] = []
    skipped: list[str] = []
    for entry in data_entries(settings):
        rows = read_rows(entry)
        table = _table(parser, rows)
        if table is None:
            skipped.append(f"{_name(entry)} ({_described(rows)})")
        else:
            found += _parsed(parser, table, rows, dropped)
    if skipped and not found and not dropped.total:
        raise ValueError(
            f"data.path={settings.path} holds no rows for data.source={settings.source}; looked for the columns "
            f"{parser.looked_for}; found {'; '.join(skipped)}.{_hint(skipped)}"
        )
    for text in skipped:
        observer.message(f"data: not read, since it has not the columns of data.source={settings.source}: {text}")
    return found


def _from_function(settings: DataSettings, dropped: DroppedRows) -> list[Record]:
    """Rows of a function of the user's: `f(path, seed) -> {table: rows}`, each row a dict in the table's columns."""
    function = load_extension("data_sources", settings.source)
    try:
        tables = function(path=settings.path, seed=settings.seed)
    except Exception as error:
        raise ValueError(f"data.source={settings.source} raised {type(error).__name__}: {error}") from error
    if not isinstance(tables, Mapping) or not tables or not set(tables) <= set(COLUMNS):
        got = f"the keys {', '.join(map(str, tables))}" if isinstance(tables, Mapping) else type(tables).__name__
        raise ValueError(
            f"data.source={settings.source} must return a dict from some of {', '.join(COLUMNS)} to lists of rows; "
            f"got {got}"
        )
    found: list[Record] = []
    for table, rows in tables.items():
        found += _parsed(
            PARSERS["tables"], table, [_given(settings, table, i, row) for i, row in enumerate(rows)], dropped
        )
    return found


def _given(settings: DataSettings, table: str, index: int, row: Any) -> SourceRow:
    """A row of a user's function; its `split`, if it has one, says where it belongs."""
    where = f"{settings.source} {table}:{index}"
    if not isinstance(row, Mapping):
        return SourceRow({}, where, table, None, f"no dict but {type(row).__name__}")
    split = row.get("split")
    values = {name: value for name, value in row.items() if name != "split"}
    if split not in (None, "train", "validation", "test"):
        return SourceRow(values, where, table, None, f"split is {split!r}, not train, validation or test")
    return SourceRow(values, where, table, split)


def _synthetic(settings: DataSettings) -> list[Record]:
    from rloo_core.data.synthetic import build_tables

    tables = build_tables(settings.synthetic, settings.seed)
    return [
        Record(table, dict(row), f"synthetic {table}-{split}:{index}", split)
        for table in COLUMNS
        for split, rows in tables.get(table, {}).items()
        for index, row in enumerate(rows)
    ]


def _table(parser: Parser, rows: Sequence[SourceRow]) -> str | None:
    """The table of a file's rows: by their columns, unless the file's name tells another that they also fit."""
    columns = _columns(rows)
    table = parser.table_of(columns)
    named = next((row.table for row in rows if row.table), None)
    if table is None or named is None:
        return table
    needed = {"prompts": {"prompt"}, "demonstrations": {"prompt", "completion"}}.get(named)
    return named if needed is not None and needed <= columns and parser is PARSERS["tables"] else table


def _parsed(parser: Parser, table: str, rows: Sequence[SourceRow], dropped: DroppedRows) -> list[Record]:
    kept = []
    for row in rows:
        try:
            if row.problem:
                raise UnusableRowError(row.problem)
            kept.append(parser.parse(row, table))
        except UnusableRowError as reason:
            dropped.add(table, None, str(reason), row.where)
    return kept


def _columns(rows: Sequence[SourceRow]) -> set[str]:
    return {str(name) for row in rows for name in row.values}


def _name(entry: Path | str) -> str:
    return entry if isinstance(entry, str) else entry.name


def _described(rows: Sequence[SourceRow]) -> str:
    broken = [f"{row.problem} at {row.where}" for row in rows if row.problem]
    first = f", first problem: {broken[0]}" if broken else ""
    return f"{len(rows)} rows, columns {', '.join(sorted(_columns(rows))) or 'none'}{first}"


def _hint(skipped: Sequence[str]) -> str:
    if any("input_ids" in text for text in skipped):
        return " Rows that are already token ids cannot be used: give the text, which is tokenised here, once."
    return ""


def derived(found: Sequence[Record], observer: Observer) -> list[Record]:
    """Add the tables that the source does not hold, where they follow from those that it does.

    demonstrations = prompts with their chosen replies; prompts = the demonstrations' prompts, with the completion as
    the reference. There is nothing from which preferences would follow.
    """
    present = Counter(record.table for record in found)
    full = list(found)
    if present["preferences"] and not present["demonstrations"]:
        observer.message("data: no demonstrations given: the chosen replies of the preferences are used")
        full += [_derived(record, "demonstrations", "completion", "chosen") for record in _of(full, "preferences")]
    if _of(full, "demonstrations") and not present["prompts"]:
        origin = "demonstrations" if present["demonstrations"] else "preferences"
        observer.message(f"data: no prompts given: those of the {origin} are used, with their replies as references")
        full += [_derived(record, "prompts", "reference", "completion") for record in _of(full, "demonstrations")]
    if found and not present["preferences"]:
        observer.message("data: no preferences given: a reward model cannot be trained on this data")
    return full


def _of(found: Sequence[Record], table: str) -> list[Record]:
    return [record for record in found if record.table == table]


def _derived(record: Record, table: str, column: str, origin: str) -> Record:
    known = COLUMNS[record.table]
    further = {name: value for name, value in record.row.items() if name not in known}
    return replace(record, table=table, row={"prompt": record.row["prompt"], column: record.row[origin], **further})
