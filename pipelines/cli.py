"""The command line: `rloo run | plan | config | ui | runs | …`, each with Hydra overrides as plain arguments.

Heavy libraries are imported by the commands that need them, so that help and plans come at once.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from pipelines import cli_evaluation, cli_runs, cli_services, cli_study
from pipelines.config_errors import ConfigError, Refused, nearest

if TYPE_CHECKING:
    from pipelines.plan import PlannedStage, Selection
    from pipelines.records import Record
    from rloo_core.settings import ExperimentSettings

WOULD_RUN = 3  # exit code of `rloo plan` when something would run
WRONG_SETTING = 2
SETTINGS = {"ignore_unknown_options": True}  # so that a mistyped option gets our answer, with the nearest one


class Commands(TyperGroup):
    """Answers overrides in the place of a command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and "=" in args[0] and not args[0].startswith("-"):
            ctx.fail(f"{args[0]} is a setting; the command comes first: rloo run {' '.join(args)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="From human feedback to an aligned language model: data, SFT, reward model, RLOO, evaluation.\n\n"
    "`rloo run` does all of it on the embedded task; `rloo run experiment=tiny` is the quickest look.",
)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDES",
        help="Settings, e.g. `experiment=tiny seed=1 algorithm.kl_coef=0.3`; see `rloo config`.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="STAGE", help="Only this stage (may be repeated); what it reads must be finished."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="STAGE", help="This stage and later ones; earlier ones must be finished."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="Nothing after this stage.")]
Force = Annotated[
    list[str] | None,
    typer.Option("--force", metavar="STAGE", help="Run this stage even if it is finished (may be repeated)."),
]


app.add_typer(cli_runs.commands)
app.add_typer(cli_services.commands)
app.add_typer(cli_evaluation.commands)
app.add_typer(cli_study.commands)

AcceptCode = Annotated[
    bool,
    typer.Option(
        "--accept-code",
        help="Take over outputs, and go on from checkpoints, that differ in code alone: you say that the change is "
        "harmless.",
    ),
]


@app.callback(invoke_without_command=True)
def root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if show_version:
        typer.echo(f"rloo {version('rloo')}")
        raise typer.Exit


@app.command(context_settings=SETTINGS)
def run(
    overrides: Overrides = None,
    only: Only = None,
    from_stage: From = None,
    until: Until = None,
    force: Force = None,
    accept_code: AcceptCode = False,
    no_prefect: Annotated[
        bool, typer.Option("--no-prefect", help="Run the same stages without Prefect (starts a few seconds faster).")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with a run that failed or was killed; see `rloo runs`, or `last`."
        ),
    ] = None,
) -> None:
    """Run the pipeline; finished stages with the same settings, data and code are reused.

    Stages: data, sft, reward_model, policy, evaluation.

    **Examples**

    - `rloo run` the embedded task, nothing to the report
    - `rloo run experiment=tiny seed=1` the same, small
    - `rloo run algorithm.kl_coef=0.3` runs the policy and the evaluation again, nothing else
    - `rloo run --until reward_model` stops there
    - `rloo run --force sft` trains SFT again, and what depends on it if it comes out different
    - `rloo run --resume last` goes on with the newest run, as it was typed
    - `rloo run experiment=hh_stories data.path=HH_FILES model.path=MODEL` real data, real model
    """
    with explained():
        settings = settings_of(overrides)
        selection = _selection(only, from_stage, until, force, accept_code)
        record = None
        if resume is not None:
            settings, overrides, selection, record = _resumed(resume, settings, overrides or [], selection)
        from pipelines.plan import make_plan
        from pipelines.store import Store

        make_plan(settings, Store(settings.paths.root), selection, overrides or [])  # refuse before any work
        from pipelines.runner import run_pipeline

        code = run_pipeline(settings, list(overrides or []), selection, not no_prefect, resume=record)
    raise typer.Exit(code)


@app.command(context_settings=SETTINGS)
def plan(
    overrides: Overrides = None,
    only: Only = None,
    from_stage: From = None,
    until: Until = None,
    force: Force = None,
    accept_code: AcceptCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Hash all outputs, not only sizes and times.")] = False,
) -> None:
    """Show what would run, what would be reused, and why. Starts nothing.

    Exit code: 0 if everything would be reused, 3 if something would run, 2 for a wrong setting.

    **Examples**

    - `rloo plan`
    - `rloo plan algorithm.kl_coef=0.3`
    - `rloo plan experiment=tiny --force sft --json`
    """
    with explained():
        from pipelines.plan import make_plan
        from pipelines.store import Store

        settings = settings_of(overrides)
        selection = _selection(only, from_stage, until, force, accept_code)
        planned = make_plan(settings, Store(settings.paths.root), selection, overrides or [], verify)
    if as_json:
        _print_json(planned, settings)
    else:
        _print_table(planned, settings)
    raise typer.Exit(WOULD_RUN if any(stage.action in ("run", "depends") for stage in planned) else 0)


@app.command(context_settings=SETTINGS)
def config(overrides: Overrides = None) -> None:
    """Print the resolved, validated settings as YAML.

    **Examples**

    - `rloo config`
    - `rloo config experiment=tldr_pythia_6.9b`
    - `rloo config experiment=tiny algorithm.group_size=2 > settings.yaml`
    """
    with explained():
        from pipelines.config import to_yaml

        typer.echo(to_yaml(settings_of(overrides)), nl=False)


@app.command(context_settings=SETTINGS)
def ui(
    overrides: Overrides = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Start MLflow's pages on what the runs left. Listens on this machine only; Ctrl-C ends it.

    **Examples**

    - `rloo ui`
    - `rloo ui paths.root=/data/runs --port 5001`
    """
    with explained():
        settings = settings_of(overrides)
        from pipelines.ui import start_server

        code = start_server(settings, port, typer.echo)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of `rloo`."""
    sys.path.append(str(Path.cwd()))  # for algorithm.reward_function=module:function; last, so that it hides nothing
    app(prog_name="rloo")


def settings_of(overrides: list[str] | None) -> "ExperimentSettings":
    """The settings that a person typed.

    Raises:
        ConfigError: If they are wrong, or an option is.
    """
    refuse_unknown_options(overrides or [])
    from pipelines.config import load_settings

    return load_settings(overrides or [])


def _resumed(
    name: str, settings: "ExperimentSettings", overrides: list[str], selection: "Selection"
) -> "tuple[ExperimentSettings, list[str], Selection, Record]":
    """Everything as it was typed for the run that is to go on; where it lies and `--accept-code` may be said.

    Raises:
        ConfigError: If anything else is said, or the run cannot go on.
    """
    from pipelines.config_overrides import without_root
    from pipelines.plan import Selection
    from pipelines.records import left_of, to_resume
    from pipelines.store import Store

    others = without_root(overrides)
    if others or selection != Selection(accept_code=selection.accept_code):
        said = " ".join([*others, str(selection)]).strip() or "--force"
        raise ConfigError(
            f"--resume {name} goes on with what was typed then, so it does not go with {said}; "
            f"leave that out, or start a new run without --resume"
        )
    root = Path(settings.paths.root)
    record = to_resume(root, name)
    left = left_of(record, Store(root))
    left = replace(left, accept_code=left.accept_code or selection.accept_code)
    return record.settings(root), record.overrides, left, record


def refuse_unknown_options(overrides: list[str]) -> None:
    """Options that no command has, typed among overrides.

    Raises:
        ConfigError: If there are any.
    """
    problems = [_unknown_option(text) for text in overrides if text.startswith("-")]
    if problems:
        raise ConfigError(problems)


def _unknown_option(text: str) -> str:
    from pipelines.config_overrides import group_options, known_keys

    name = text.partition("=")[0].lstrip("-")
    if name in known_keys() or name in group_options():
        return f"{text}: settings have no dashes: {text.lstrip('-') if '=' in text else name + '=...'}"
    options = (
        "--only",
        "--from",
        "--until",
        "--force",
        "--no-prefect",
        "--resume",
        "--accept-code",
        "--json",
        "--verify",
        "--port",
        "--profile",
        "--seeds",
        "--workers",
        "--memory",
        "--runner",
        "--address",
        "--plan",
    )
    return f"{text} is no option of this command{nearest(f'--{name}', options) or '; see --help'}"


def _selection(
    only: list[str] | None,
    from_stage: str | None,
    until: str | None,
    force: list[str] | None,
    accept_code: bool = False,
) -> "Selection":
    from pipelines.plan import Selection

    return Selection(tuple(only or ()), from_stage, until, tuple(force or ()), accept_code)


@contextmanager
def explained() -> Iterator[None]:
    """Within this block, wrong settings are told in a few lines on stderr, without a traceback."""
    try:
        yield
    except ConfigError as error:
        for problem in error.problems:
            print(f"rloo: {problem}", file=sys.stderr)
        raise typer.Exit(WRONG_SETTING) from None
    except Refused as error:
        print(f"rloo: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _print_json(planned: "list[PlannedStage]", settings: "ExperimentSettings") -> None:
    stages = [
        {"stage": stage.name, "action": stage.action, "reason": stage.reason, "fingerprint": stage.fingerprint}
        for stage in planned
    ]
    typer.echo(json.dumps({"name": settings.name, "root": settings.paths.root, "stages": stages}, indent=2))


def _print_table(planned: "list[PlannedStage]", settings: "ExperimentSettings") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"reuse": "green", "run": "yellow", "depends": "cyan", "skip": "dim"}
    table = Table("stage", "action", "reason", box=None, pad_edge=False, header_style="bold")
    for stage in planned:
        table.add_row(stage.name, Text(stage.action, colours[stage.action]), Text(stage.reason))
    console = Console()
    console.print(Text(f"{settings.name}, in {settings.paths.root}"), soft_wrap=True)
    console.print(table)


if __name__ == "__main__":
    main()
