"""`rloo services up | status | down | deploy` and `rloo relocate`: the machine's part."""

from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"ignore_unknown_options": True}
NOT_UP = 3  # exit code of `rloo services status` when something does not answer
commands = typer.Typer()
services = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="A Prefect server, a worker and MLflow for this machine: runs from a page and on a schedule.",
)
commands.add_typer(services, name="services")
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="Settings, e.g. `paths.root=/data/runs`.", show_default=False),
]


@services.command("up", context_settings=SETTINGS)
def services_up(
    overrides: Overrides = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, for systemd or a container.")] = False,
) -> None:
    """Start Prefect, a worker and MLflow on loopback, make the deployments, print the addresses.

    What is given here holds for every run that a deployment starts: the run root, databases, threads. Where the
    services run already, the deployments are brought up to date.

    **Examples**

    - `rloo services up`
    - `rloo services up paths.root=/data/runs services.prefect_port=4201`
    - `rloo services up tracking.uri=postgresql+psycopg://me@db/mlflow` and the same for `services.prefect_database`
    """
    from pipelines.cli import explained, settings_of

    with explained():
        settings = settings_of(overrides)
        from pipelines.services import up

        up(settings, overrides or [], foreground, typer.echo)


@services.command("status", context_settings=SETTINGS)
def services_status(overrides: Overrides = None) -> None:
    """Say what runs and where. Exit code: 0 if all of it answers, 3 otherwise."""
    from pipelines.cli import explained, settings_of

    with explained():
        root = Path(settings_of(overrides).paths.root)
        from pipelines.services import status

        good = status(root, typer.echo)
    raise typer.Exit(0 if good else NOT_UP)


@services.command("down", context_settings=SETTINGS)
def services_down(overrides: Overrides = None) -> None:
    """Stop the services and the runs of their worker; a run goes on from its checkpoint when it is retried."""
    from pipelines.cli import explained, settings_of

    with explained():
        root = Path(settings_of(overrides).paths.root)
        from pipelines.services import down

        down(root, typer.echo)


@services.command("deploy", context_settings=SETTINGS)
def services_deploy(overrides: Overrides = None) -> None:
    """Make work pool and deployments on the running services, or on the server that PREFECT_API_URL names."""
    from pipelines.cli import explained, settings_of

    with explained():
        settings = settings_of(overrides)
        from pipelines.services import deploy

        deploy(settings, overrides or [], typer.echo)


@commands.command(context_settings=SETTINGS)
def relocate(
    overrides: Overrides = None,
    old: Annotated[
        str | None, typer.Option("--from", metavar="OLD", help="Where the run root was; usually found out.")
    ] = None,
) -> None:
    """After a run root was moved or copied: correct the addresses in MLflow's database.

    **Examples**

    - `mv runs /data/runs && rloo relocate paths.root=/data/runs`
    """
    from pipelines.cli import explained, settings_of

    with explained():
        settings = settings_of(overrides)
        from pipelines import relocate as moving

        moving.relocate(settings, old, typer.echo)
