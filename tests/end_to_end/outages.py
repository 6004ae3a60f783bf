"""Servers that go away in the middle of a run and come back, for tests of outages.

The outages take seconds; RLOO_OUTAGE_SECONDS=180 makes them long.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.services import answers, free_port, until

SECONDS = float(os.environ.get("RLOO_OUTAGE_SECONDS", "3"))
EPOCHS = f"sft.epochs={10 + SECONDS}"  # longer than the outage
STAGES = ("data", "sft", "reward_model")
EXPERIMENT = "tracking.experiment=outage"
TYPED = ["--until", "reward_model", "experiment=tiny", EPOCHS, "reward_model.epochs=40"]


@dataclass
class Server:
    """A server and its workers, in a process group of their own.

    Args:
        place: Its directory.
        port: On loopback.
        command: What starts it.
        environment: Added to this process's.
        health: The path that answers when it is there.
    """

    place: Path
    port: int
    command: Sequence[str]
    environment: Mapping[str, str]
    health: str
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.place,
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: answers(f"{self.uri}{self.health}"), "the server to answer", 300)

    def signal(self, number: int) -> None:
        """To the server and its workers, all at once."""
        assert self.process is not None
        with suppress(ProcessLookupError):  # it has been killed
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()


def mlflow_server(place: Path) -> Server:
    """On a database and a directory of its own; it stores artifacts, too."""
    port = free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{place}/mlflow.db", "--artifacts-destination", str(place / "files"),
    ]  # fmt: skip
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return Server(place, port, command, quiet, "/health")


def prefect_server(place: Path) -> Server:
    """On a database of its own."""
    port = free_port()
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    home = {"PREFECT_HOME": str(place), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_UI_ENABLED": "0"}
    return Server(place, port, command, home, "/api/health")


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Started; killed at the end."""
    server.place.mkdir(exist_ok=True)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def rloo_run(place: Path, *arguments: str, **environment: str) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
    """`rloo run` with a log of what it says; killed at the end, if it still runs."""
    log = place / "log"
    command = [str(Path(sys.executable).parent / "rloo"), "run", *TYPED, *arguments]
    with log.open("wb") as file:
        run = subprocess.Popen(
            command, cwd=place, env={**os.environ, **environment}, stdout=file, stderr=file, stdin=subprocess.DEVNULL
        )
    try:
        yield run, log
    finally:
        run.kill()
        run.wait()


def steps(folder: Path) -> list[dict[str, Any]]:
    """What a stage has recorded so far; a line that is being written does not count."""
    (file,) = list(folder.glob("*/metrics.jsonl")) or [None]
    try:
        lines = file.read_text().splitlines() if file is not None else []
    except FileNotFoundError:  # published just now
        lines = []
    return [json.loads(line) for line in lines if line.endswith("}")]


def went_on(root: Path, began: int) -> bool:
    """Whether SFT has made more than the step that was being made, or has ended."""
    return ended(root, "sft") or len(steps(root / "work" / "sft")) > began + 1


def freeze(server: Server, root: Path) -> None:
    """A server that does not answer for a while in the middle of SFT; the training goes on meanwhile."""
    until(lambda: len(steps(root / "work" / "sft")) > 20, "SFT to be under way", 600)
    began, away = len(steps(root / "work" / "sft")), time.monotonic()
    server.signal(signal.SIGSTOP)
    until(
        lambda: time.monotonic() > away + SECONDS and went_on(root, began),
        "the outage to pass and the training to go on",
        SECONDS + 600,
    )
    server.signal(signal.SIGCONT)


def ended(root: Path, stage: str) -> bool:
    """Whether a stage's output is in the store."""
    return bool(list((root / "store" / stage).glob("*")))


def said(log: Path, words: str) -> int:
    """How often a run has said something."""
    return log.read_text().count(words)


def everything_is_in_mlflow(root: Path, uri: str) -> None:
    """One run a stage and their parent, all ended; every step of every metric once; links, models, files."""
    from mlflow import MlflowClient

    api = MlflowClient(uri, uri)
    experiment = api.get_experiment_by_name("outage")
    runs = {run.data.tags.get("stage"): run for run in api.search_runs([experiment.experiment_id])}
    assert len(api.search_runs([experiment.experiment_id])) == len(runs) == 1 + len(STAGES)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {runs[stage].data.tags["mlflow.parentRunId"] for stage in STAGES} == {runs[None].info.run_id}
    for stage in STAGES[1:]:
        recorded = steps(root / "store" / stage)
        for name in {name for row in recorded for name in row if name != "step"}:
            found = [(point.step, point.value) for point in api.get_metric_history(runs[stage].info.run_id, name)]
            assert sorted(found) == [(row["step"], row[name]) for row in recorded if name in row], (stage, name)
        assert runs[stage].inputs.dataset_inputs
        files = {file.path for file in api.list_artifacts(runs[stage].info.run_id)}
        assert "settings.json" in files
        (version,) = api.search_model_versions(f"name = 'outage-{stage.replace('_', '-')}'")
        assert version.run_id == runs[stage].info.run_id
    assert list((root / "tracking").iterdir()) == []
