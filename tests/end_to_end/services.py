"""Helpers for tests against real services: start and stop them, talk to Prefect's API as its pages do."""

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
BUSY = 503  # Prefect's answer while another has SQLite's lock; its own client asks again, too
SMALL = [  # the tiny experiment, smaller still: a few seconds
    "data.synthetic.prompts=32", "data.synthetic.demonstrations=32", "data.synthetic.preferences=32",
    "data.synthetic.validation=8", "data.synthetic.test=8", "algorithm.steps=2", "algorithm.rollout_batch_size=8",
    "algorithm.eval_prompts=4", "sft.batch_size=16", "reward_model.batch_size=16", "evaluation.best_of=0",
]  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A machine with running services: its run root, and the environment of commands typed on it."""

    root: Path
    prefect: str
    mlflow: str
    environment: dict[str, str]
    ports: tuple[str, ...]

    def rloo(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """A command, as typed."""
        command = [str(Path(sys.executable).parent / "rloo"), *arguments, f"paths.root={self.root}"]
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.root.parent,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def ask(self, path: str, body: object = None, method: str | None = None) -> Any:
        """Ask Prefect's API; raises `urllib.error.HTTPError` where it refuses. A busy database is asked again."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.prefect}/api/{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        for attempt in range(10):
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    text = answer.read()
                break
            except urllib.error.HTTPError as error:
                if error.code != BUSY or attempt == 9:
                    raise
                time.sleep(0.5)
        return json.loads(text) if text else None

    def start(self, deployment: str, flow: str = "rloo", **parameters: object) -> str:
        """Start a run of a deployment, as the button in Prefect's pages does; its id."""
        found = self.ask(f"deployments/name/{flow}/{deployment}")
        parameters = {**found["parameters"], **parameters}
        return str(self.ask(f"deployments/{found['id']}/create_flow_run", {"parameters": parameters})["id"])

    def state(self, run: str) -> tuple[str, str]:
        """Type and name of a flow run's state."""
        state = self.ask(f"flow_runs/{run}")["state"]
        return state["type"], state["name"]

    def stages(self, run: str) -> dict[str, str]:
        """Names of the states of a flow run's tasks, by stage."""
        tasks = self.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        return {task["name"]: task["state_name"] for task in tasks}

    def wait_for(self, run: str, *kinds: str, seconds: float = 600) -> tuple[str, str]:
        """Wait until a flow run is in a state of one of these types."""
        return until(lambda: (state := self.state(run))[0] in kinds and state, f"{run} to be {kinds}", seconds)

    def set_state(self, run: str, kind: str, name: str) -> None:
        """Ask for a state, as the buttons in Prefect's pages do."""
        self.ask(f"flow_runs/{run}/set_state", {"state": {"type": kind, "name": name}, "force": False})

    def client(self) -> Any:
        """MLflow's client on the run root's database."""
        from mlflow import MlflowClient

        return MlflowClient(f"sqlite:///{self.root}/mlflow.db", f"sqlite:///{self.root}/mlflow.db")

    def mlflow_runs(self, flow_run: str) -> list[Any]:
        """The parent runs in MLflow that carry a flow run's id, and their children."""
        client = self.client()
        experiments = [each.experiment_id for each in client.search_experiments()]
        parents = client.search_runs(experiments, f"tags.`prefect.run` = '{flow_run}'")
        children = [
            run
            for parent in parents
            for run in client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
        ]
        return [*parents, *children]


@contextmanager
def machine(place: Path, *overrides: str, environment: dict[str, str] | None = None) -> Iterator[Machine]:
    """Services on free ports in an empty directory, stopped at the end."""
    home = place / "home"
    home.mkdir(parents=True)
    root = place / "runs"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    clean |= {"HOME": str(home), "OMP_NUM_THREADS": "1", **(environment or {})}
    prefect, mlflow = free_port(), free_port()
    ports = (f"services.prefect_port={prefect}", f"services.mlflow_port={mlflow}")
    here = Machine(root, f"http://127.0.0.1:{prefect}", f"http://127.0.0.1:{mlflow}", clean, ports)
    done = here.rloo("services", "up", *ports, *overrides)
    try:
        assert done.returncode == 0, done.stdout + done.stderr + logs(root)
        yield here
    finally:
        here.rloo("services", "down")


def logs(root: Path) -> str:
    """The ends of the services' logs, for a failed test's message."""
    return "".join(f"\n== {file.name}\n{file.read_text()[-2000:]}" for file in (root / "logs").glob("service*.log"))


def until(condition: Callable[[], T], what: str, seconds: float = 600) -> T:
    """Wait for a condition and return its value. A service that takes too long to answer is asked again.

    Raises:
        AssertionError: If it does not come true.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(TimeoutError):
            if value := condition():
                return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.2)


def processes(flow_run: str) -> list[int]:
    """Processes of this machine that belong to a flow run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if flow_run.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def answers(url: str) -> bool:
    """Whether something answers there."""
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def free_port() -> int:
    """A port on loopback that nobody listens on, and none of those that the system hands out to whoever asks for any.

    Raises:
        AssertionError: If there is none.
    """
    for port in random.SystemRandom().sample(range(15000, 32000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("100 ports between 15000 and 32000 are in use")
