"""`rloo runs | sync | lineage | prune`: what has been run, where a model comes from, what can go."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow import MlflowClient

    from pipelines.records import Record
    from pipelines.store import Store
    from pipelines.tracking.lineage import Node
    from rloo_core.settings import ExperimentSettings

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


@commands.command(context_settings=SETTINGS)
def lineage(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="NAME, NAME@ALIAS or NAME/VERSION.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="Print it as a Mermaid flowchart.")] = False,
) -> None:
    """Show what a registered model was made from, back to the digests of the rows.

    **Examples**

    - `rloo lineage rloo-policy@champion`
    - `rloo lineage rloo-policy/3 --json`
    - `rloo lineage rloo-policy --mermaid > lineage.mmd`
    """
    from pipelines.cli import explained, settings_of

    with explained():
        client = _mlflow(settings_of(overrides))
        from pipelines.tracking.lineage import lineage as lineage_of
        from pipelines.tracking.lineage import mermaid

        node = lineage_of(client, model)
    if as_json:
        typer.echo(json.dumps(node.as_dict(), indent=2))
    elif as_mermaid:
        typer.echo(mermaid(node))
    else:
        _print_lineage(node)


@commands.command(context_settings=SETTINGS)
def prune(
    overrides: Overrides = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest runs whose outputs stay.")] = 10,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; otherwise it is only shown.")] = False,
) -> None:
    """Show what a run root could do without, and remove it with --yes.

    Outputs of old runs and leftover checkpoints go. What a registered model or a kept run needs stays, and all that
    those were made from.

    **Examples**

    - `rloo prune` shows what would go
    - `rloo prune --keep 3 --yes` removes it
    """
    from pipelines.cli import explained, settings_of

    with explained():
        settings = settings_of(overrides)
        client = _mlflow(settings)
    from pipelines.disk import in_words
    from pipelines.prune import removals, remove
    from pipelines.store import Store
    from pipelines.tracking.models import mark_pruned, registered_outputs

    store = Store(settings.paths.root)
    freed = 0
    for removal in removals(store, registered_outputs(client), keep):
        manifest = store.manifest(removal.stage, removal.fingerprint)
        if not yes or remove(removal, store):
            freed += removal.size
            if yes and manifest is not None and manifest.run_id and not removal.path.exists():
                _quietly(mark_pruned, client, manifest.run_id)
            typer.echo(f"{in_words(removal.size):>8}  {removal.stage:<14} {removal.fingerprint[:12]}  {removal.reason}")
    done = "removed" if yes else "could go; `rloo prune --yes` removes it"
    typer.echo(f"{in_words(freed)} {done}" if freed else "nothing to remove")


def _quietly(call: "Callable[..., object]", *arguments: object) -> None:
    """A note in MLflow is not worth failing for: the run may be gone from there."""
    from contextlib import suppress

    with suppress(Exception):
        call(*arguments)


def _mlflow(settings: "ExperimentSettings") -> "MlflowClient":
    """MLflow's client for a run root that has been used.

    Raises:
        ConfigError: If there is nothing yet, or MLflow does not answer.
    """
    from pipelines.config_errors import ConfigError
    from pipelines.environment import prepare

    root = Path(settings.paths.root)
    if settings.tracking.uri is None and not (root / "mlflow.db").exists():
        raise ConfigError(f"there is no run in {root} yet; start one with `rloo run`, or name another paths.root")
    prepare(root)
    from pipelines.tracking.connection import first_line, open_client

    uri = settings.tracking.uri or f"sqlite:///{root}/mlflow.db"
    try:
        client = open_client(uri, root)
        client.search_experiments(max_results=1)
    except Exception as error:
        raise ConfigError(f"MLflow at {uri} does not answer: {first_line(error)}") from None
    return client


def _print_lineage(node: "Node") -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def grow(parent: Tree | None, node: "Node") -> Tree:
        title = Text(node.title, style="bold")
        title.append(f"  {node.stage} {node.fingerprint[:12]}  run {node.run_id[:12]}", style="not bold dim")
        tree = Tree(title) if parent is None else parent.add(title)
        for table in node.tables:
            tree.add(Text(f"{table.name}  {table.rows} rows  sha256 {table.sha256}"))
        for each in node.made_from:
            grow(tree, each)
        return tree

    Console(width=max(Console().width, 160)).print(grow(None, node))


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
    from rich.table import Column, Table
    from rich.text import Text

    from pipelines.disk import in_words, usage

    console = Console()
    colours = {"FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "KILLED": "yellow"}
    run = Column("run", no_wrap=True, min_width=max((len(row["run"]) for row in rows), default=0))  # --resume takes it
    table = Table(run, "status", "took", "stages", "outputs", "typed", box=None, pad_edge=False, header_style="bold")
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
