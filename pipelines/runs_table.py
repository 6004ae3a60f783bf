"""What `rloo runs` lists: a row a pipeline run, and a row a study, whose points are listed on demand."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from pipelines.disk import in_words, usage
from pipelines.records import Record, records
from pipelines.store import Store

COLOURS = {"FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "KILLED": "yellow"}


def rows_of(store: Store, everything: bool) -> list[dict[str, Any]]:
    """The rows, the newest first.

    Args:
        store: Of the run root.
        everything: Also the points of studies.
    """
    every = records(store.root)
    members: dict[str, list[Record]] = {}
    for record in every:
        members.setdefault(record.state.parent, []).append(record)
    studies = {record.state.key for record in every if record.is_study}
    listed = [record for record in every if everything or record.state.parent not in studies]
    return [_row(record, members.get(record.state.key, ()), store) for record in listed]


def _row(record: Record, members: Sequence[Record], store: Store) -> dict[str, Any]:
    """One of them.

    Args:
        record: The run, or the study.
        members: Of a study: its points, and what was computed for several of them.
        store: Of the run root.
    """
    state = record.state
    manifests = {note["stage"]: store.manifest(note["stage"], note["fingerprint"]) for note in state.notes}
    row = {
        "run": record.name,
        "name": state.name,
        "status": record.status,
        "attempts": state.attempt,
        "started": state.started,
        "ended": state.ended,
        "stages": {note["stage"]: note["action"] for note in state.notes},
        "finished": [stage for stage, manifest in manifests.items() if manifest is not None],
        "overrides": record.overrides,
        "mlflow_run": state.run_id,
        "bytes": _size([record, *members], store),
    }
    if record.is_study:
        points = Counter(each.status for each in members if "shared" not in each.state.tags)
        row |= {"command": record.command, "points": dict(points)}
    return row


def _size(of: Iterable[Record], store: Store) -> int:
    """Bytes of the outputs of these runs; what several of them use counts once."""
    outputs = {(note["stage"], note["fingerprint"]) for record in of for note in record.state.notes}
    manifests = (store.manifest(*output) for output in outputs)
    return sum(file.size for manifest in manifests if manifest is not None for file in manifest.files.values())


def print_rows(rows: Sequence[Mapping[str, Any]], root: Path) -> None:
    """The rows as a table, and what takes the space."""
    console = Console()
    run = Column("run", no_wrap=True, min_width=max((len(row["run"]) for row in rows), default=0))  # --resume takes it
    table = Table(run, "status", "took", "stages", "outputs", "typed", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(
            Text(row["run"]),
            Text(row["status"].lower(), COLOURS[row["status"]]),
            _duration(row),
            Text(_made(row)),
            in_words(row["bytes"]),
            Text(row["command"].removeprefix("rloo ") if "command" in row else " ".join(row["overrides"])),
        )
    console.print(table if rows else Text(f"there is no run in {root} yet; start one with `rloo run`"))
    sizes = usage(root)
    if sizes:
        console.print(Text(f"\n{root} takes {in_words(sum(sizes.values()))}", style="bold"), soft_wrap=True)
        for meaning, size in sizes.items():
            console.print(f"  {in_words(size):>8}  {meaning}")


def _made(row: Mapping[str, Any]) -> str:
    """How much it is."""
    if "points" not in row:
        computed = sum(action == "run" for action in row["stages"].values())
        return f"{computed} run, {len(row['stages']) - computed} reused"
    unlike = [f"{many} {status.lower()}" for status, many in row["points"].items() if status != "FINISHED"]
    return ", ".join([f"{sum(row['points'].values())} points", *unlike])


def _duration(row: Mapping[str, Any]) -> str:
    if row["status"] == "KILLED" and row["ended"] is None:
        return "?"
    seconds = ((row["ended"] or time.time() * 1000) - row["started"]) / 1000
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
