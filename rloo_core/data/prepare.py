"""The data stage's work: read, derive what is missing, one form for all prompts, split, filter, cap."""

from collections.abc import Sequence

from rloo_core.data.filters import LengthFilter
from rloo_core.data.hh import HUMAN, transcript_messages
from rloo_core.data.schema import REPLIES, SPLITS, TABLES, DroppedRows, Messages, Record, Row, UnusableRowError
from rloo_core.data.sources import derived, read_records
from rloo_core.data.splits import assign_splits, capped, with_declared_splits, without_repeated_prompts
from rloo_core.data.tokens import Encoder
from rloo_core.observer import Observer
from rloo_core.settings import DataSettings

Tables = dict[str, dict[str, list[Row]]]


def prepare_tables(settings: DataSettings, encoder: Encoder, observer: Observer) -> tuple[Tables, DroppedRows]:
    """The three tables by split, and what had to be left out.

    Args:
        settings: The source, its path, the filters.
        encoder: Measures the lengths.
        observer: Hears what was derived, skipped and dropped.

    Returns:
        (rows by table and split, the counts of dropped rows).

    Raises:
        ValueError: If nothing can be read, or nothing is left of a table that is needed.
    """
    dropped = DroppedRows()
    records = derived(read_records(settings, dropped, observer), observer)
    present = {record.table for record in records}
    records = in_one_form(records, settings.format == "messages", dropped, observer)
    records = split_records(records, settings, dropped, observer)
    lengths = LengthFilter(encoder, settings.max_prompt_tokens, settings.max_total_tokens)
    records = lengths.keep(records, dropped)
    fractions = settings.validation_fraction, settings.test_fraction
    records = capped(records, settings.max_rows, *fractions, settings.seed, dropped)
    tables: Tables = {table: {split: [] for split in SPLITS} for table in TABLES}
    for record in records:
        tables[record.table][str(record.split)].append(record.row)
    _report_dropped(dropped, observer)
    _check_not_empty(tables, present, settings, dropped, observer)
    return tables, dropped


def in_one_form(records: Sequence[Record], messages: bool, dropped: DroppedRows, observer: Observer) -> list[Record]:
    """All prompts as messages if that is wanted or if any of them is; as they are otherwise.

    Text becomes a user's turn, a transcript ("\\n\\nHuman: … \\n\\nAssistant:") its turns; the space that a reply to
    text begins with goes.
    """
    texts = [record for record in records if isinstance(record.row["prompt"], str)]
    if not texts or not (messages or len(texts) < len(records)):
        return list(records)
    if not messages:
        observer.message(f"data: {len(texts)} text prompts become messages, since others are messages")
    kept = []
    for record in records:
        try:
            kept.append(record.with_row(_as_messages(record)) if isinstance(record.row["prompt"], str) else record)
        except UnusableRowError as reason:
            dropped.add(record.table, None, str(reason), record.where)
    return kept


def split_records(
    records: Sequence[Record], settings: DataSettings, dropped: DroppedRows, observer: Observer
) -> list[Record]:
    """Rows with their final split, prompts once."""
    named = {record.split for record in records if record.split}
    records = with_declared_splits(records)
    if named and not any(record.split for record in records):
        observer.message(
            f"data: every row is declared {' or '.join(sorted(named))}, none train: split anew by a hash of the "
            f"prompt, {settings.validation_fraction:g} for validation, {settings.test_fraction:g} for test"
        )
    records = assign_splits(records, settings.validation_fraction, settings.test_fraction, settings.seed, dropped)
    return without_repeated_prompts(records, dropped)


def _as_messages(record: Record) -> Row:
    text = record.row["prompt"]
    prompt: Messages = transcript_messages(text) if text.startswith(HUMAN) else [{"role": "user", "content": text}]
    replies = {name: record.row[name] for name in (*REPLIES[record.table], "reference") if record.row.get(name)}
    return record.row | {"prompt": prompt} | {name: reply.strip() for name, reply in replies.items()}


def _report_dropped(dropped: DroppedRows, observer: Observer) -> None:
    for sentence in dropped.sentences():
        observer.message(f"data: {sentence}")
    columns = ("table", "split", "reason", "rows")
    observer.table("dropped_rows", [{name: row[name] for name in columns} for row in dropped.rows()])


def _check_not_empty(
    tables: Tables, present: set[str], settings: DataSettings, dropped: DroppedRows, observer: Observer
) -> None:
    needed = [(table, "train") for table in ("prompts", "demonstrations", *sorted(present & {"preferences"}))]
    if settings.test_fraction > 0:
        needed.append(("prompts", "test"))
    for table, split in needed:
        if not tables[table][split]:
            raise ValueError(_nothing_left(table, split, settings, dropped))
    for split in ("validation", "test"):
        if not tables["prompts"][split]:
            observer.message(f"data: there are no {split} prompts")


def _nothing_left(table: str, split: str, settings: DataSettings, dropped: DroppedRows) -> str:
    """What a person needs to know where a table came out empty."""
    by_reason = dropped.by_reason()
    own = {reason: tables[table] for reason, tables in by_reason.items() if table in tables}
    counts = own or {reason: sum(tables.values()) for reason, tables in by_reason.items()}
    listed = ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1]))
    worst = max(counts, key=lambda reason: counts[reason], default="")
    setting = next(
        (name for name in ("data.max_prompt_tokens", "data.max_total_tokens", "data.max_rows") if name in worst), None
    )
    if setting:
        advice = f"set a larger {setting}"
    elif split == "test":
        advice = "set a larger data.test_fraction, another data.seed, or add rows whose file name says test"
    else:
        advice = f"give rows of {table} in data.path"
    return (
        f"Nothing is left of {table} ({split}) from data.source={settings.source}, data.path={settings.path}; dropped: "
        f"{listed or 'nothing, the source holds none'}. To go on, {advice}."
    )
