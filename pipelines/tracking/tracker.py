"""The parent run of a pipeline run, and its stages."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, ViewType

from pipelines.tracking.connection import Connection
from pipelines.tracking.names import safe_key
from pipelines.tracking.processes import identity, is_dead
from pipelines.tracking.stage_run import StageRun
from rloo_core.settings import ExperimentSettings

PARENT = "mlflow.parentRunId"


@dataclass(frozen=True)
class StageNote:
    """What the parent run says about a stage: its MLflow run, and whether it ran or was reused."""

    stage: str
    action: str
    run_id: str | None


class Tracker:
    """Writes one pipeline run to MLflow."""

    def __init__(self, settings: ExperimentSettings, connection: Connection) -> None:
        self.settings = settings
        self.connection = connection
        self.run_id = ""
        self.notes: list[StageNote] = []

    @classmethod
    def open(cls, settings: ExperimentSettings, warn: Callable[[str], None]) -> "Tracker":
        """Connect, create the experiment, and end the runs that dead processes left behind.

        Raises:
            TrackingError: If MLflow cannot be opened; nothing has been computed yet.
        """
        connection = Connection(settings.tracking, Path(settings.paths.root).absolute(), warn)
        connection.attempt(
            "look for runs of dead processes", lambda client: _reconcile(client, connection.experiment_id)
        )
        return cls(settings, connection)

    def start(self, config: str, overrides: Sequence[str], plan: Sequence[Mapping[str, str]]) -> None:
        """Open the parent run.

        Args:
            config: The resolved config, YAML.
            overrides: What a person typed.
            plan: One row a stage: stage, action, reason.
        """
        typed = " ".join(overrides)[:5000] or "(none)"
        tags = {"overrides": typed, "seed": str(self.settings.seed), **_git_sha(), **identity()}

        def send(client: MlflowClient) -> str:
            run = client.create_run(self.connection.experiment_id, tags=tags, run_name=self.settings.name)
            run_id = str(run.info.run_id)
            client.log_text(run_id, config, "config.yaml")
            client.log_text(run_id, json.dumps(list(plan), indent=2), "plan.json")
            client.log_text(run_id, _markdown(plan), "plan.md")
            return run_id

        self.run_id = self.connection.attempt("open a run", send) or ""

    def tag(self, key: str, value: str) -> None:
        """Tag the parent run."""
        self.connection.attempt("tag a run", lambda client: client.set_tag(self.run_id, safe_key(key), value[:5000]))

    def start_stage(self, stage: str, fingerprint: str, settings: Mapping[str, object], journal: Path) -> StageRun:
        """Open the run of a stage, or open it again where a killed attempt left its journal.

        Args:
            stage: Name of the stage.
            fingerprint: What identifies its result.
            settings: The stage's validated settings.
            journal: Path of `metrics.jsonl`; `metrics.run` beside it holds the id of the MLflow run.
        """
        marker = journal.with_suffix(".run")
        known = marker.read_text(encoding="utf-8").strip() if marker.exists() else ""
        run_id = self._reopen(known) if known else None
        fresh = run_id is None
        run_id = run_id or self._create(stage, fingerprint)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(run_id, encoding="utf-8")
        run = StageRun(self.connection, run_id, stage, journal)
        if fresh:
            run.settings(settings)
        self._note(StageNote(stage, "run", run_id))
        return run

    def reused(self, stage: str, run_id: str | None) -> None:
        """Link the run that made a reused output."""
        self.tag(f"reused.{stage}", run_id or "unknown")
        if run_id:
            self.connection.attempt("look at a reused run", lambda client: _end_as_finished(client, run_id))
        self._note(StageNote(stage, "reused", run_id))

    def result(self, values: Mapping[str, float]) -> None:
        """Numbers of the whole run, so that runs can be compared in MLflow's list."""
        now = int(time.time() * 1000)
        metrics = [Metric(safe_key(key), float(value), now, 0) for key, value in values.items()]
        self.connection.attempt("log results", lambda client: client.log_batch(self.run_id, metrics=metrics))

    def finish(self, status: str) -> None:
        """End the parent run as FINISHED, FAILED or KILLED."""
        self.connection.attempt("end a run", lambda client: client.set_terminated(self.run_id, status))

    def _create(self, stage: str, fingerprint: str) -> str:
        tags = {PARENT: self.run_id, "stage": stage, "fingerprint": fingerprint, "attempt": "1", **identity()}

        def send(client: MlflowClient) -> str:
            return str(client.create_run(self.connection.experiment_id, tags=tags, run_name=stage).info.run_id)

        return self.connection.attempt("open a run", send) or ""

    def _reopen(self, run_id: str) -> str | None:
        """Take up the run of a killed attempt; None if it is gone from MLflow."""

        def send(client: MlflowClient) -> str | None:
            run = client.get_run(run_id)
            if run.info.lifecycle_stage != "active" or run.info.experiment_id != self.connection.experiment_id:
                return None
            attempt = int(run.data.tags.get("attempt", "1")) + 1
            client.update_run(run_id, status="RUNNING")
            for key, value in {PARENT: self.run_id, "attempt": str(attempt), **identity()}.items():
                client.set_tag(run_id, key, value)
            return run_id

        try:
            return send(self.connection.client)
        except Exception:  # the run was removed for good, or lives in another database: a new one is opened
            return None

    def _note(self, note: StageNote) -> None:
        self.notes.append(note)
        base = f"#/experiments/{self.connection.experiment_id}/runs"
        lines = ["| stage | | run |", "|---|---|---|"]
        for each in self.notes:
            link = f"[{each.run_id}]({base}/{each.run_id})" if each.run_id else "unknown"
            lines.append(f"| {each.stage} | {each.action} | {link} |")
        self.tag("mlflow.note.content", "\n".join(lines))


def _reconcile(client: MlflowClient, experiment_id: str) -> None:
    """End RUNNING runs whose process is dead on this machine as KILLED."""
    running = client.search_runs(
        [experiment_id], "attributes.status = 'RUNNING'", run_view_type=ViewType.ACTIVE_ONLY, max_results=1000
    )
    for run in running:
        if is_dead(run.data.tags):
            client.set_terminated(run.info.run_id, "KILLED")


def _end_as_finished(client: MlflowClient, run_id: str) -> None:
    """A process that died after it had published a stage left a run that looks killed."""
    if client.get_run(run_id).info.status != "FINISHED":
        client.set_terminated(run_id, "FINISHED")


def _git_sha() -> dict[str, str]:
    """The commit of the checkout this code lies in, marked where files differ from it; nothing for a wheel."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return {}
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git.commit": done.stdout.strip()}


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(str(row.get(column, "")).replace("|", "\\|") for column in columns) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"
