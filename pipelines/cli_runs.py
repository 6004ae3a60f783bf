"""`rloo runs | sync | lineage | prune`: what has been run, where a model comes from, what can go."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow import MlflowClient

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
def runs(
    overrides: Overrides = None,
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Also the points of studies, each a run.")] = False,
) -> None:
    """List the pipeline runs and studies of a run root, the newest first, and the disk space it takes.

    **Examples**

    - `rloo runs`
    - `rloo runs --all` with every point of every study
    - `rloo runs paths.root=/data/runs --json`
    - `rloo run --resume 20260131-093000-1f2e` goes on with one that failed or was killed
    """
    from pipelines.cli import explained, settings_of

    with explained():
        root = Path(settings_of(overrides).paths.root)
    from pipelines.disk import usage
    from pipelines.runs_table import print_rows, rows_of
    from pipelines.store import Store

    rows = rows_of(Store(root), everything)
    if as_json:
        typer.echo(json.dumps({"root": str(root), "runs": rows, "disk": usage(root)}, indent=2))
    else:
        print_rows(rows, root)


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
    some = f"{left} runs could not be sent completely; try again later"
    typer.echo(some if left else "this MLflow has everything")
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
            whole = removal.path == store.path(removal.stage, removal.fingerprint)
            if yes and whole and manifest is not None and manifest.run_id:
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
