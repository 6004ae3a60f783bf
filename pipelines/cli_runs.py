"""`rloo runs | sync`: what has been run, and what MLflow has yet to get."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipelines.records import Record
    from pipelines.store import Store

SETTINGS = {"ignore_unknown_options": True}
commands = typer.Typer()
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="Settings, e.g. `paths.root=/data/runs`.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@commands.command(context_settings=SETTINGS)
def runs(overrides: Overrides = None, as_json: AsJson = False) -> None:
    """List the pipeline runs of a run root, the newest first, and the disk space it takes.

    **Examples**

    - `rloo runs`
    - `rloo runs paths.root=/data/runs --json`
    - `rloo run --resume 20260131-093000-1f2e` goes on with one that failed or was killed
    """
    from pipelines.cli import explained, settings_of

    with explained():
        root = Path(settings_of(overrides).paths.root)
    from pipelines.disk import usage
    from pipelines.records import records
    from pipelines.store import Store

    store = Store(root)
    rows = [_row(record, store) for record in records(root)]
    if as_json:
        typer.echo(json.dumps({"root": str(root), "runs": rows, "disk": usage(root)}, indent=2))
    else:
        _print(rows, root)


@commands.command(context_settings=SETTINGS)
def sync(overrides: Overrides = None) -> None:
    """Send to MLflow what it has not got because it was away, and end the runs of dead processes there.

    Every `rloo run` does so at its start; this is for when no run is due.

    **Examples**

    - `rloo sync`
    - `rloo sync paths.root=/data/runs`
    """
    from pipelines.cli import explained, settings_of

    with explained():
        settings = settings_of(overrides)
    from pipelines.environment import prepare

    prepare(Path(settings.paths.root))
    from pipelines.tracking import TrackingError, deliver

    try:
        left = deliver(settings, lambda text: typer.echo(f"warning: {text}", err=True), typer.echo)
    except TrackingError as error:
        print(f"rloo: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    typer.echo("MLflow has everything" if not left else f"{left} runs could not be sent completely; try again later")
    raise typer.Exit(1 if left else 0)


def _row(record: "Record", store: "Store") -> dict[str, Any]:
    state = record.state
    manifests = {note["stage"]: store.manifest(note["stage"], note["fingerprint"]) for note in state.notes}
    sizes = {m.fingerprint: sum(file.size for file in m.files.values()) for m in manifests.values() if m is not None}
    return {
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
        "bytes": sum(sizes.values()),
    }


def _print(rows: list[dict[str, Any]], root: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from pipelines.disk import in_words, usage

    console = Console()
    colours = {"FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "KILLED": "yellow"}
    table = Table("run", "status", "took", "stages", "outputs", "typed", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        computed = [stage for stage, action in row["stages"].items() if action == "run"]
        table.add_row(
            Text(row["run"]),
            Text(row["status"].lower(), colours[row["status"]]),
            _duration(row),
            Text(f"{len(computed)} run, {len(row['stages']) - len(computed)} reused"),
            in_words(row["bytes"]),
            Text(" ".join(row["overrides"])),
        )
    console.print(table if rows else Text(f"there is no run in {root} yet; start one with `rloo run`"))
    sizes = usage(root)
    if sizes:
        console.print(Text(f"\n{root} takes {in_words(sum(sizes.values()))}", style="bold"), soft_wrap=True)
        for meaning, size in sizes.items():
            console.print(f"  {in_words(size):>8}  {meaning}")


def _duration(row: dict[str, Any]) -> str:
    if row["status"] == "KILLED" and row["ended"] is None:
        return "?"
    seconds = ((row["ended"] or time.time() * 1000) - row["started"]) / 1000
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
