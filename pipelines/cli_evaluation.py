"""`rloo evaluate | judge | report`: evidence on models and completions from anywhere, and the report of a run."""

import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.config_errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.records import Record
    from rloo_core.evaluation.judges.make import Means
    from rloo_core.settings import ExperimentSettings

SETTINGS = {"ignore_unknown_options": True}
FAILED = 1
commands = typer.Typer()

Judges = Annotated[
    list[str] | None,
    typer.Option(
        "--judge",
        metavar="JUDGE",
        help="Who decides (may be repeated): length, brevity, rouge, gold, llm, reward:DIRECTORY, "
        "function:MODULE:NAME, pairwise:MODULE:NAME.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIRECTORY", help="Keep results, judgements and a report there.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what the judges would cost; ask nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="OVERRIDES", help="Settings, e.g. `evaluation.llm.model=…`.", show_default=False),
]


@commands.command(context_settings=SETTINGS)
def report(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [OVERRIDES]", help="A run of `rloo runs` (default: the last one).", show_default=False
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser, where there is one.")] = True,
) -> None:
    """Make the report of a run again, one HTML file that needs nothing else, and open it.

    **Examples**

    - `rloo report`
    - `rloo report 20260131-093000-1f2e --no-open`
    - `rloo report paths.root=/data/runs`
    """
    from pipelines.cli import explained, settings_of

    names, overrides = _names_and_overrides(arguments or [])
    with explained():
        if len(names) > 1:
            raise ConfigError(f"one run at a time; got {', '.join(names)}")
        root = Path(settings_of(overrides).paths.root)
        from pipelines.environment import prepare

        prepare(root)
        from pipelines.records import find_record
        from pipelines.report_run import run_report
        from pipelines.store import Store

        record = find_record(root, names[0] if names else "last")
        path = _study_page(record) if record.is_study else run_report(record, Store(root))
    typer.echo(str(path))
    if browser and sys.stdout.isatty():
        webbrowser.open(path.absolute().as_uri())


def _study_page(record: "Record") -> Path:
    """A study writes its page itself."""
    from pipelines.studies.run import STUDY_PAGE

    path = record.evidence.directory / "files" / STUDY_PAGE
    if not path.exists():
        raise ConfigError(f"{record.name} has no page yet; it is written at the end of: {record.command}")
    return path


@commands.command(context_settings=SETTINGS)
def judge(
    a: Annotated[Path, typer.Argument(metavar="A", help="Completions of the one side: JSONL, JSON, CSV or Parquet.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Completions of the other side, on the same prompts.")],
    overrides: Overrides = None,
    judges: Judges = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="COLUMN", help="Column of the prompts.")] = None,
    completion: Annotated[
        str | None, typer.Option("--completion", metavar="COLUMN", help="Column of the completions.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="COLUMN", help="Column of the references.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="COLUMN",
            help="Column with a person's vote (may be repeated): 1 or a for A, 2 or b for B, 0 or tie.",
        ),
    ] = None,
    out: Out = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compare two files of completions that came from anywhere, prompt by prompt, in both orders.

    Rows need a `prompt` and a `completion`; `reference` and further columns are there for judges that read them.

    **Examples**

    - `rloo judge ours.jsonl theirs.jsonl`
    - `rloo judge ours.jsonl theirs.jsonl --judge rouge --judge length --out verdicts`
    - `rloo judge a.csv b.csv --judge llm --dry-run evaluation.llm.template=hh evaluation.llm.price_prompt=0.4`
    - `rloo judge a.jsonl b.jsonl --judge function:my_rewards:short --label annotator1 --label annotator2`
    """
    from pipelines.cli import explained, settings_of

    with explained(), _told():
        settings = settings_of(overrides)
        from pipelines import judging
        from rloo_core.evaluation.duels import duel, pair_up
        from rloo_core.evaluation.judges.make import make_judge

        named = {"prompt": prompt, "completion": completion, "reference": reference}
        pairs = pair_up(judging.read_completions(a, named), judging.read_completions(b, named))
        means = _means(settings)
        made = [make_judge(name, means) for name in dict.fromkeys(judges or ["length"])]
        if dry_run:
            for line in judging.forecast_lines(made, pairs):
                typer.echo(line)
            return
        result, names = duel(pairs, made, label or (), settings.evaluation.seed), (str(a), str(b))
        if out is not None:
            judging.keep(out, pairs, result, names)
    if as_json:
        typer.echo(judging.results_json(pairs, result, names))
        return
    console = _console()
    console.print(
        f"{len(pairs.questions)} pairs; without a counterpart: {pairs.unmatched[0]} of A, {pairs.unmatched[1]} of B"
    )
    for rows in (judging.rate_rows(result), judging.agreement_rows(result), judging.measure_rows(result)):
        _print_rows(console, rows)
    if out is not None:
        console.print(f"kept in {out}: results.json, judgements.jsonl, report.html", soft_wrap=True)


@commands.command(context_settings=SETTINGS)
def evaluate(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL… [OVERRIDES]",
            help="Hugging Face directories or registered models (NAME/VERSION, NAME@ALIAS); the first is the "
            "yardstick of the others.",
        ),
    ],
    judges: Judges = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="Prompts (default: the test prompts of the last run)."),
    ] = None,
    decoding: Annotated[str, typer.Option("--decoding", help="greedy or sampled.")] = "greedy",
    out: Out = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let models write on the same prompts, and compare them with the references and with the first of them.

    **Examples**

    - `rloo evaluate runs/store/sft/…/model runs/store/policy/…/model`
    - `rloo evaluate rloo-sft/1 rloo-policy@champion --judge gold --out verdicts`
    - `rloo evaluate ./mine ./theirs --prompts prompts.jsonl --judge llm --decoding sampled evaluation.temperature=0.7`
    """
    from pipelines.cli import explained, settings_of

    models, overrides = _names_and_overrides(arguments)
    with explained(), _told():
        if not models or decoding not in ("greedy", "sampled"):
            raise ConfigError("name one or more models" if not models else f"--decoding {decoding}: greedy or sampled")
        settings = settings_of(overrides)
        from pipelines.environment import prepare

        prepare(Path(settings.paths.root))
        from pipelines import evaluating, judging

        result = evaluating.evaluate(settings, models, prompts, judges or [], decoding, _means(settings), dry_run)
        if result is None:
            return
        if out is not None:
            evaluating.keep(out, result)
    if as_json:
        typer.echo(evaluating.results_json(result))
        return
    console = _console()
    _print_rows(console, evaluating.measure_rows(result))
    for title, (_, each) in result.duels.items():
        console.print(title)
        _print_rows(console, judging.rate_rows(each))
    if out is not None:
        console.print(f"kept in {out}: completions-*.jsonl, results.json, report.html", soft_wrap=True)


def _names_and_overrides(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What names a run or model, and what is a setting (or an option that does not exist, which is refused as one)."""
    overrides = [argument for argument in arguments if "=" in argument or argument.startswith("-")]
    return [argument for argument in arguments if argument not in overrides], overrides


def _means(settings: "ExperimentSettings") -> "Means":
    from rloo_core.evaluation.judges.make import Means
    from rloo_core.trainer import make_accelerator

    return Means(
        settings.evaluation.llm,
        settings.model.chat_template,
        settings.compute.max_tokens_per_batch,
        make_accelerator(settings.compute).device,
        lambda line: typer.echo(line, err=True),
    )


@contextmanager
def _told() -> Iterator[None]:
    """What cannot be done is one line on stderr, without a traceback."""
    from rloo_core.evaluation.judges.base import JudgeError

    try:
        yield
    except (ValueError, OSError, JudgeError) as error:
        if isinstance(error, ConfigError):
            raise
        print(f"rloo: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False)


def _print_rows(console: "Console", rows: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(rows[0]):
        table.add_column(Text(name), justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))
    console.print(table)
