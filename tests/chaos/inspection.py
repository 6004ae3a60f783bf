"""What a run must have left, however often it was killed."""

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from rloo_core.stages import STAGES

PROCESSES_SECONDS = 120.0  # the watchdog gives a Prefect server three to stop, a busy machine takes longer


@dataclass(frozen=True)
class Reference:
    """The undisturbed run: digest of each stage's outputs, (metric, step) of each stage, seconds of each stage."""

    digests: dict[str, str]
    metrics: dict[str, set[tuple[str, int]]]
    seconds: dict[str, float]
    versions: dict[str, int]


def reference_of(root: Path) -> Reference:
    """Read it from a run root."""
    manifests = {name: _manifest(root, name) for name in STAGES}
    return Reference(
        {name: manifest["digest"] for name, manifest in manifests.items()},
        {name: {*_metrics(root, manifest["run_id"])} for name, manifest in manifests.items()},
        {name: manifest["duration"] for name, manifest in manifests.items()},
        _versions(root),
    )


def troubles(root: Path, reference: Reference) -> list[str]:
    """How what is left differs from what an undisturbed run leaves; empty if it does not."""
    from mlflow import MlflowClient

    found: list[str] = []
    for name in STAGES:
        manifest = _manifest(root, name)
        if manifest["digest"] != reference.digests[name]:
            found.append(f"{name}: other bits than the undisturbed run")
        steps = _metrics(root, manifest["run_id"])
        if len(steps) != len(set(steps)):
            found.append(f"{name}: {len(steps) - len(set(steps))} metric values appear twice")
        if set(steps) != reference.metrics[name]:
            found.append(f"{name}: metrics differ: {sorted(set(steps) ^ reference.metrics[name])[:5]}")
    client = MlflowClient(_uri(root), _uri(root))
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], max_results=5000)
    for name in STAGES:
        status = sorted(run.info.status for run in runs if run.data.tags.get("stage") == name)
        if status != ["FINISHED"]:
            found.append(f"{name}: MLflow runs {status}, not one FINISHED")
    parents = sorted(run.info.status for run in runs if "stage" not in run.data.tags)
    if parents.count("FINISHED") != 1 or "RUNNING" in parents:
        found.append(f"pipeline runs: {parents}")
    if _versions(root) != reference.versions:
        found.append(f"registered versions: {_versions(root)}, not {reference.versions}")
    found += [f"left behind: {path.relative_to(root)}" for path in (root / "tracking").glob("*")]
    found += [f"left behind: {path.relative_to(root)}" for path in (root / "work").glob("*/*")]
    found += [f"lock still held: {path.name}" for path in (root / "locks").iterdir() if not _free(path)]
    return found + left_processes(root, root.name)


def left_processes(root: Path, when: str) -> list[str]:
    """Processes that name the run root in their command or environment, some time after the last one was killed."""
    deadline = time.monotonic() + PROCESSES_SECONDS
    while (alive := _processes(root)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{when}: process {process} is still there" for process in alive]


def _processes(root: Path) -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        if int(directory.name) == os.getpid():
            continue
        try:
            text = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
            zombie = (directory / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if os.fsencode(f"{root}/") in text and not zombie:
            found.append(f"{directory.name}: {text[:80]!r}")
    return found


def _manifest(root: Path, stage: str) -> dict:  # type: ignore[type-arg]
    (directory,) = (root / "store" / stage).iterdir()
    return json.loads((directory / "manifest.json").read_text())


def _uri(root: Path) -> str:
    return f"sqlite:///{root}/mlflow.db"


def _metrics(root: Path, run_id: str) -> list[tuple[str, int]]:
    """(metric, step) of every value that MLflow has."""
    from mlflow import MlflowClient

    client = MlflowClient(_uri(root), _uri(root))
    names = client.get_run(run_id).data.metrics
    return [(name, point.step) for name in names for point in client.get_metric_history(run_id, name)]


def _versions(root: Path) -> dict[str, int]:
    from mlflow import MlflowClient

    client = MlflowClient(_uri(root), _uri(root))
    return {m.name: len(client.search_model_versions(f"name = '{m.name}'")) for m in client.search_registered_models()}


def _free(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
