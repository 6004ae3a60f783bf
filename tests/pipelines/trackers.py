"""A tracker whose stages need no training: what tests of `pipelines.tracking` share."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mlflow import MlflowClient

from pipelines.store import LOGS
from pipelines.tracking import StageRun, Tracker

PLAN = [{"stage": "sft", "action": "run", "reason": "a | b"}]


def begin(tracker: Tracker) -> None:
    """Open the parent run."""
    tracker.start("name: tiny\n", {"overrides": ["seed=1"]}, PLAN)


def start(tracker: Tracker, stage: str, fingerprint: str = "f" * 32, **inputs: str) -> StageRun:
    """Open the run of a stage."""
    settings = {"sft": {"epochs": 2.0, "prompt": "x" * 7000}, "odd[key]": [1, 2]}
    return tracker.start_stage(stage, fingerprint, settings, tracker.store.work(stage, fingerprint), inputs)


def publish(tracker: Tracker, run: StageRun, files: Path | None = None, **inputs: str) -> None:
    """Publish what a stage left (`files`, or one line of text) and finish its run."""
    stage, fingerprint, store = run.stage, run.evidence.state.fingerprint, tracker.store
    work = store.work(stage, fingerprint)
    if files is not None:
        shutil.copytree(files, work, dirs_exist_ok=True)
    (work / "result.txt").write_text(stage)
    with run.evidence.lock:
        store.publish(stage, fingerprint, parts={}, inputs={}, summary={}, duration=1.0, run_id=run.run_id or None)
        run.finish("FINISHED", published=store.path(stage, fingerprint) / LOGS)


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for what a thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def settle(tracker: Tracker) -> None:
    """Wait until all that has ended is in MLflow."""
    tracker.mirror.wake()
    until(lambda: not tracker.mirror._left())


def history(tracker: Tracker, run_id: str, key: str) -> list[tuple[int, float]]:
    """Steps and values of a metric in MLflow."""
    return sorted((m.step, m.value) for m in client(tracker).get_metric_history(run_id, key))


def client(tracker: Tracker) -> MlflowClient:
    """A client of its own: what a test breaks about the tracker's does not concern it."""
    return MlflowClient(tracker.connection.uri, tracker.connection.uri)


def no_warning(text: str) -> None:
    """For trackers that should have nothing to complain about."""
    raise AssertionError(text)


def quiet(text: str) -> None:
    """For what a person would be told."""


def by_stage(tracker: Tracker) -> Mapping[str, list[str]]:
    """Status of every run in MLflow, by stage; the parents under ""."""
    found: dict[str, list[str]] = {}
    for run in client(tracker).search_runs([tracker.connection.experiment_id]):
        found.setdefault(run.data.tags.get("stage", ""), []).append(run.info.status)
    return found
