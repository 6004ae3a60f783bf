"""Splits: the same prompt never stands in two of them, whatever tables or files it comes from."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rloo_core.data.schema import SPLITS, DroppedRows, Record
from rloo_core.random_streams import seed_for


def with_declared_splits(records: Sequence[Record]) -> list[Record]:
    """Make sense of the splits that files declare.

    Where no row is for training (a directory with nothing but test files), the names are of no use and are ignored.
    In a table that declares a split for some rows, the others are for training.
    """
    if records and all(record.split in ("validation", "test") for record in records):
        return [replace(record, split=None) for record in records]
    declaring = {record.table for record in records if record.split}
    return [
        replace(record, split="train") if record.split is None and record.table in declaring else record
        for record in records
    ]


def assign_splits(
    records: Sequence[Record], validation_fraction: float, test_fraction: float, seed: int, dropped: DroppedRows
) -> list[Record]:
    """Give every row a split that depends on its prompt alone.

    A prompt that the source declares for test stays there, then validation. Of the others a hash of (seed, prompt) sets
    `test_fraction` and `validation_fraction` aside, unless the source brings that split itself. A row that declares
    another split than its prompt has got would leak, so it is dropped and counted.

    Returns:
        Rows with a split, in the given order.

    Raises:
        ValueError: If the fractions leave nothing to train on.
    """
    if validation_fraction + test_fraction >= 1:
        raise ValueError(
            f"data.validation_fraction + data.test_fraction must leave rows to train on (sum below 1); got "
            f"{validation_fraction} + {test_fraction}."
        )
    declared: dict[str, set[str]] = defaultdict(set)
    for record in records:
        declared[record.key].add(record.split or "")
    brought = set().union(*declared.values()) if declared else set()

    def split_for(key: str) -> str:
        fixed = declared[key]
        if fixed & {"test", "validation"}:
            return "test" if "test" in fixed else "validation"
        position = seed_for(seed, f"split {key}") / 2**63
        drawn = "test" if position < test_fraction else "validation"
        if position >= test_fraction + validation_fraction or ("train" in fixed and drawn in brought):
            return "train"
        return drawn

    kept = []
    for record in records:
        split = split_for(record.key)
        if record.split in ("validation", "train") and split in declared[record.key] - {record.split}:
            dropped.add(record.table, record.split, f"prompt also in the {split} split", record.where)
        else:
            kept.append(replace(record, split=split))
    return kept


def without_repeated_prompts(records: Sequence[Record], dropped: DroppedRows) -> list[Record]:
    """Keep the first row of each prompt in the table of prompts: repeats would weigh it more, and count it twice."""
    seen: set[str] = set()
    kept = []
    for record in records:
        if record.table == "prompts" and record.key in seen:
            dropped.add(record.table, record.split, "prompt repeated", record.where)
            continue
        if record.table == "prompts":
            seen.add(record.key)
        kept.append(record)
    return kept


def capped(
    records: Sequence[Record],
    max_rows: int | None,
    validation_fraction: float,
    test_fraction: float,
    seed: int,
    dropped: DroppedRows,
) -> list[Record]:
    """Keep at most `max_rows` rows of each table over all its splits, shared between them by the fractions.

    Which rows stay is decided by a hash of (seed, prompt): not by their order, and for the same prompts in every table.
    """
    if max_rows is None:
        return list(records)
    shares = _shares(max_rows, validation_fraction, test_fraction)
    groups: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        groups[record.table, record.split].append(index)
    kept: set[int] = set()
    for (_, split), indices in groups.items():
        ranked = sorted(indices, key=lambda index: seed_for(seed, f"max_rows {records[index].key}"))
        kept.update(ranked[: shares[str(split)]])
    for index, record in enumerate(records):
        if index not in kept:
            dropped.add(record.table, record.split, "over data.max_rows", record.where)
    return [record for index, record in enumerate(records) if index in kept]


def _shares(max_rows: int, validation_fraction: float, test_fraction: float) -> dict[str, int]:
    """Rows for each split, `max_rows` in all; at least one where a split has a fraction."""
    shares = {
        split: max(1, round(max_rows * fraction)) if fraction else 0
        for split, fraction in zip(SPLITS[1:], (validation_fraction, test_fraction), strict=True)
    }
    return {"train": max(1, max_rows - sum(shares.values())), **shares}
