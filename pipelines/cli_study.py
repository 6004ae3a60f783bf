"""`rloo study`: sweeps with seeds, from one file to tables, figures and verdicts."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from pipelines.studies.run import Prepared

SETTINGS = {"ignore_unknown_options": True}
commands = typer.Typer()


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="Settings of every point: `algorithm.steps=20`.", show_default=False),
]
Profile = Annotated[str, typer.Option("--profile", help="Its size: laptop, quick, paper, or one of the study's own.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds; the profile's by default.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Points at a time; by default as many as cores and memory allow.")
]
Memory = Annotated[
    float | None,
    typer.Option("--memory", min=0.1, metavar="GIB", help="For all points together; by default 80 % of what is free."),
]
Runner = Annotated[
    Literal["local", "dask", "ray"],
    typer.Option("--runner", help="Processes of this machine, or Prefect's task runner for Dask or Ray."),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Of a Dask or Ray cluster that runs already and sees the run root (`paths.root`), too; needs --workers.",
    ),
]
ShowPlan = Annotated[bool, typer.Option("--plan", help="Check every point, show what would run; start nothing.")]


@commands.command(context_settings=SETTINGS)
def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A study of conf/study, a YAML file, or `all`.")],
    overrides: Overrides = None,
    profile: Profile = "laptop",
    seeds: Seeds = None,
    workers: Workers = None,
    memory: Memory = None,
    runner: Runner = "local",
    address: Address = None,
    plan: ShowPlan = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    no_prefect: Annotated[bool, typer.Option("--no-prefect", help="Without Prefect.")] = False,
) -> None:
    """Run a base experiment x axes x seeds, and print tables and verdicts. What is finished is not computed again.

    An interrupted study goes on when it is started again; with more --seeds only the new ones are computed.

    **Examples**

    - `rloo study kl` RLOO and RAFT over KL coefficients, five seeds
    - `rloo study noise --profile quick` a coarse look
    - `rloo study all --profile laptop` the paper's set: about an hour and a half on two cores
    - `rloo study algorithms --profile paper --plan` composes and checks the full-scale grid
    - `rloo study my_study.yaml algorithm.steps=20 --seeds 3`
    """
    from pipelines.cli import explained, refuse_unknown_options

    with explained():
        refuse_unknown_options(overrides or [])
        _refuse_what_does_not_go_together(runner, address, no_prefect)
        found = _prepared(name, overrides or [], profile, seeds, workers, memory, runner, address)
        if plan or as_json:
            _show(found, as_json)
            return
        code = _run(found, not no_prefect, together=len(found) > 1)
    raise typer.Exit(code)


def _refuse_what_does_not_go_together(runner: str, address: str | None, no_prefect: bool) -> None:
    from pipelines.config_errors import ConfigError

    if runner != "local" and no_prefect:
        raise ConfigError(f"--runner {runner} is one of Prefect's, so it does not go with --no-prefect")
    if runner == "local" and address is not None:
        raise ConfigError(f"--address {address}: that is of a cluster; say of which with --runner dask or --runner ray")


def _prepared(
    name: str,
    overrides: list[str],
    profile: str,
    seeds: int | None,
    workers: int | None,
    memory: float | None,
    runner: str,
    address: str | None,
) -> "list[Prepared]":
    from pipelines.cli import settings_of
    from pipelines.config_overrides import without_root
    from pipelines.studies.loading import load_definition, named
    from pipelines.studies.run import Options, prepare

    root = Path(settings_of([text for text in overrides if text.startswith("paths.root=")]).paths.root)
    options = Options(root, tuple(overrides), workers, memory, runner, address)
    own = without_root(overrides)
    return [prepare(load_definition(each, profile, own, seeds), options) for each in named(name)]


def _run(found: "list[Prepared]", use_prefect: bool, together: bool) -> int:
    """Exit code as of `rloo run`; 1 also where a point failed."""
    from pipelines.console import Console
    from pipelines.process import sigterm_raises
    from pipelines.runner import explain
    from pipelines.studies.starting import run_all

    console = Console()
    root = found[0].options.root
    try:
        with sigterm_raises():
            return run_all(found, console, use_prefect, together)
    except BaseException as error:
        return explain(error, console, root / "logs" / "study-errors.log", root)


def _workers(prepared: "Prepared") -> dict[str, Any]:
    """How many points at a time; or why none, where a study is only looked at on a machine that is too small for it."""
    from pipelines.config_errors import ConfigError

    try:
        return {"workers": prepared.workers}
    except ConfigError as error:
        if prepared.options.workers or prepared.options.memory:
            raise
        return {"workers": None, "why_not": f"none on this machine ({error})"}


def _show(found: "list[Prepared]", as_json: bool) -> None:
    """What would run; exit code 0 if nothing, else 3."""
    from pipelines.studies.run import to_do

    rows: list[dict[str, Any]] = [{"study": each.study.name, "profile": each.study.profile, "points": len(each.points),
             **_workers(each), "warnings": list(each.warnings), "to_run": to_do(each)} for each in found]  # fmt: skip
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        for row in rows:
            many = f"{row['workers']} at a time" if row["workers"] else row["why_not"]
            print(f"{row['study']}, {row['profile']}: {row['points']} points, {many}")
            for warning in row["warnings"]:
                print(f"  {warning}")
            print("to run:")
            for name in row["to_run"] or ["nothing"]:
                print(f"  {name}")
    if any(row["to_run"] for row in rows):
        sys.exit(3)
