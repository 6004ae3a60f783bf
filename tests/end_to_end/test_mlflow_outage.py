"""A real MLflow server that freezes in the middle of a training and is killed at the end of one: nothing is missing.

The outages take seconds here; `RLOO_OUTAGE_SECONDS=180 pytest tests/end_to_end/test_mlflow_outage.py` makes them long.
A run that has ended waits 240 s for MLflow: the second outage and the start of a server must fit into that.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.services import answers, free_port, until

SECONDS = float(os.environ.get("RLOO_OUTAGE_SECONDS", "3"))
EPOCHS = f"sft.epochs={10 + SECONDS}"  # longer than the outage
TYPED = ["experiment=tiny", EPOCHS, "reward_model.epochs=40", "tracking.experiment=outage"]
STAGES = ("data", "sft", "reward_model")
AWAY, BACK = "MLflow does not answer", "MLflow answers again"


@dataclass
class Server:
    """MLflow's server on a database and a directory of its own; it stores artifacts, too."""

    place: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.place.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.place}/mlflow.db",
            "--artifacts-destination", str(self.place / "files"),
        ]  # fmt: skip
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.place, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        until(lambda: answers(f"{self.uri}/health"), "MLflow to answer", 300)

    def signal(self, number: int) -> None:
        """To the server and its worker, all at once."""
        assert self.process is not None
        with suppress(ProcessLookupError):  # it has been killed
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()


@contextmanager
def server(place: Path) -> Iterator[Server]:
    found = Server(place, free_port())
    found.start()
    try:
        yield found
    finally:
        found.kill()


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
    return bool(list((root / "store" / "sft").glob("*"))) or len(steps(root / "work" / "sft")) > began + 1


def said(log: Path, words: str) -> int:
    """How often a run has said something."""
    return log.read_text().count(words)


def test_nothing_is_missing_after_an_outage_in_mid_training_and_one_at_a_stage_s_end(tmp_path: Path) -> None:
    root, log = tmp_path / "runs", tmp_path / "log"
    with server(tmp_path / "server") as mlflow:
        command = [
            str(Path(sys.executable).parent / "rloo"), "run", "--no-prefect", "--until", "reward_model", *TYPED,
            f"tracking.uri={mlflow.uri}", f"paths.root={root}",
        ]  # fmt: skip
        with log.open("wb") as file:
            run = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            until(lambda: len(steps(root / "work" / "sft")) > 20, "SFT to be under way", 600)
            began, away = len(steps(root / "work" / "sft")), time.monotonic()
            mlflow.signal(signal.SIGSTOP)
            until(
                lambda: time.monotonic() > away + SECONDS and went_on(root, began),
                "the outage to pass and the training to go on",
                SECONDS + 600,
            )
            mlflow.signal(signal.SIGCONT)
            until(
                lambda: len(steps(root / "work" / "reward_model")) > 20 and said(log, AWAY) == said(log, BACK),
                "the reward model to be under way",
                600 + 2 * SECONDS,
            )
            noticed = said(log, AWAY)
            mlflow.kill()
            until(lambda: list((root / "store" / "reward_model").glob("*")), "the stage to end", 600)
            until(lambda: said(log, AWAY) > noticed, "the run to notice", 600)
            time.sleep(SECONDS)
            assert run.poll() is None  # it waits for the server, to hand over the rest
            mlflow.start()
            assert run.wait(600) == 0, log.read_text()
        finally:
            run.kill()
            run.wait()
        assert said(log, BACK) > noticed
        assert not said(log, "Traceback")
        assert not said(log, "View run")
        everything_is_there(root, mlflow.uri)


def everything_is_there(root: Path, uri: str) -> None:
    """Every step of every metric once, ends, links, models, files; nothing is left to send."""
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
