"""The plan as a table and the result as a page of Prefect, with links to MLflow. Text of models is shown as text."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from pipelines.job import Job
from pipelines.plan import PlannedStage
from pipelines.report import final_table
from pipelines.service_addresses import mlflow_address
from rloo_core.settings import ExperimentSettings

LOG = logging.getLogger("rloo")
SHOWN_CHARACTERS = 600  # of a prompt or a completion
PLAIN = re.compile(r"(?!.*www\.)[A-Za-z](?:[A-Za-z0-9=,. ()%-]|(?<=[A-Za-z0-9])_(?=[A-Za-z0-9]))*")
MARKDOWN = re.compile(r"([\\`*_\[\]<>|~$&@#!]|:(?=//)|\.(?=\w))")


def publish_plan(name: str, plan: Sequence[PlannedStage]) -> None:
    """Each stage with what will be done and why, as a table artifact."""
    rows = [{"stage": stage.name, "action": stage.action, "reason": cell(stage.reason)} for stage in plan]
    _try(lambda: create_table_artifact(rows, key="plan", description=f"What {escaped(name)} will do, and why"))


def publish_report(job: Job) -> None:
    """Result, samples and links, as a markdown artifact."""
    _try(
        lambda: create_markdown_artifact(
            report(job), key="report", description=f"Result of {escaped(job.settings.name)}"
        )
    )


def report(job: Job) -> str:
    """The report as markdown: what became of each stage, the final table, samples, where to look further."""
    lines = [f"# {escaped(job.settings.name)}", "", *_stages(job)]
    evaluation = job.executor.outcomes.get("evaluation")
    if evaluation is not None:
        lines += ["", "## SFT → policy", "", *_final(evaluation.summary)]
        rows = _samples(job)
        lines += ["", "## Samples", "", *table(rows)] if rows else []
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Lines of a markdown table; cells are markdown already."""
    columns = list(rows[0])
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(row.get(column, "") for column in columns) + " |" for row in rows]


def escaped(text: str) -> str:
    """Any text as one markdown table cell that shows exactly this text: no markup, no HTML, no links, no new rows.

    Backslashes, since Prefect's pages show entities as they are written.
    """
    shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
    printable = "".join(char if char.isprintable() or char == "\n" else "�" for char in shown)
    return MARKDOWN.sub(r"\\\1", printable).replace("\n", " ⏎ ")


def cell(text: str) -> str:
    """Any text as a cell of a table artifact, which Prefect's pages read as markdown, too.

    Left as it is where it means itself, since the search field of those pages looks at what is sent.
    """
    return text if PLAIN.fullmatch(text) else escaped(text)


def run_link(settings: ExperimentSettings, experiment: str | None, run: str) -> str:
    """An MLflow run as a link to its page, or only its name where nobody serves the pages."""
    base = mlflow_address(settings.tracking, Path(settings.paths.root))
    return f"[{run[:8]}]({base}/#/experiments/{experiment}/runs/{run})" if base and run else f"`{run[:8]}`"


def run_of_the_whole(settings: ExperimentSettings, experiment: str | None, run: str) -> str:
    """Where MLflow has all of it."""
    if not run:
        return "MLflow has no run of this"
    where = f"MLflow run of the whole: {run_link(settings, experiment, run)}"
    return where if mlflow_address(settings.tracking, Path(settings.paths.root)) else f"{where}; `rloo ui` shows it"


def _stages(job: Job) -> list[str]:
    tracker, outcomes = job.executor.tracker, job.executor.outcomes
    experiment = tracker.connection.experiment_id
    rows = [
        {
            "stage": escaped(name),
            "": "reused" if outcome.reused else "completed",
            "seconds": f"{outcome.seconds:.0f}",
            "MLflow run": run_link(job.settings, experiment, outcome.run_id) if outcome.run_id else "",
            "output": f"`{outcome.directory}`",
        }
        for name, outcome in outcomes.items()
    ]
    where = run_of_the_whole(job.settings, experiment, tracker.run_id)
    return [*table(rows), "", where] if rows else [where]


def _final(summary: Mapping[str, float]) -> list[str]:
    shown = final_table(summary)
    headers = [str(column.header) or " " for column in shown.columns]
    cells = zip(*(list(column.cells) for column in shown.columns), strict=True)
    return table([dict(zip(headers, (escaped(str(cell)) for cell in row), strict=True)) for row in cells])


def _samples(job: Job) -> list[dict[str, str]]:
    """The first rows of the evaluation's completions: prompt, before, after."""
    file = job.executor.outcomes["evaluation"].directory / "completions.jsonl"
    if not file.exists():
        return []
    with file.open(encoding="utf-8") as lines:
        rows: list[dict[str, Any]] = [
            json.loads(line) for _, line in zip(range(job.settings.evaluation.samples), lines, strict=False)
        ]
    columns = {
        "prompt": "prompt",
        "reference": "reference",
        "sft_sampled": "SFT, sampled",
        "policy_sampled": "policy, sampled",
    }
    return [{shown: escaped(str(row[key])) for key, shown in columns.items() if key in row} for row in rows]


def _try(publish: Callable[[], object]) -> None:
    """An artifact that cannot be stored is no reason to stop a training."""
    try:
        publish()
    except Exception:
        LOG.warning("Prefect did not take an artifact", exc_info=True)
