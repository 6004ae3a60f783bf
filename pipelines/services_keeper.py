"""Keeps the services of one machine running: starts them again when they end, and has put right what dead runs left.

`python -m pipelines.services_keeper ROOT` does it until SIGTERM or Ctrl-C; `rloo services up` writes what it reads,
`services/spec.json`. Standard library only: it watches for weeks and should weigh little.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from pipelines.digests import write_atomically
from pipelines.evidence import undelivered
from pipelines.flow_records import left_behind
from pipelines.service_addresses import FOLDER
from pipelines.services_chores import Chore
from pipelines.watchdog import stop_watched

SPEC = "spec.json"
TICK_SECONDS = 0.5
LOOK_SECONDS = 5.0  # between two looks for what dead runs left
# After the start of a worker: what an earlier one had claimed by then and has no process is dead. Again when Prefect,
# too, knows that the earlier one has gone, if it had another name.
POOL_SECONDS = (35.0, 155.0)
LONGEST_PAUSE = 30.0  # between two starts of a service that keeps ending
WORKER_GRACE = 40.0  # seconds for flow runs to write what they must
GRACE = 5.0
UNDER_WATCHDOG = (
    "import sys; from pipelines.watchdog import watch; sys.exit(watch(sys.argv[2:], 0, float(sys.argv[1])))"
)


class AlreadyKept(RuntimeError):
    """Another keeper looks after this run root."""


@dataclass
class Service:
    """One process: how it is started, where its health is asked for, and whether it runs."""

    name: str
    command: list[str]
    environment: dict[str, str]  # in addition to the keeper's
    health: str | None
    log: Path
    grace: float = GRACE
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    pause: float = 1.0
    starts: int = field(default=0)

    def start(self) -> None:
        """Start it under a watchdog, so that it does not outlive the keeper."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", UNDER_WATCHDOG, str(self.grace), *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                cwd=self.log.parent.parent,
                start_new_session=True,
            )
        self.started = time.monotonic()
        self.starts += 1

    def ended(self) -> bool:
        """Whether it was started and has ended."""
        return self.process is not None and self.process.poll() is not None

    def healthy(self) -> bool:
        """Whether it answers; a service without an address is healthy as long as it runs."""
        if self.process is None or self.ended():
            return False
        return self.health is None or answers(self.health)

    def stop(self) -> None:
        """Stop it and wait until nothing of it is left."""
        if self.process is not None:
            stop_watched(self.process)
            self.process = None


def answers(url: str) -> bool:
    """Whether something answers there with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):
        return False


class Keeper:
    """Runs Prefect's server, MLflow and, when the deployments are made, the worker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        spec: dict[str, Any] = json.loads((root / FOLDER / SPEC).read_text(encoding="utf-8"))
        logs = root / "logs"
        self.services = {
            each["name"]: Service(**{**each, "log": logs / f"service-{each['name']}.log"}) for each in spec["services"]
        }
        self.services["worker"].grace = WORKER_GRACE
        self.deploy: list[str] = spec["deploy"]
        own = self.services["worker"].environment
        self.repair = Chore([*spec["repair"], str(root)], partial(left_behind, root), own, root)
        self.deliver = Chore(spec["deliver"], partial(undelivered, root), own, root)
        self.pool: str = spec["pool"]
        self.state: dict[str, Any] = spec["state"]
        self.ready = False
        self.stopping = False
        self._looked = 0.0
        self._pool_due: list[float] = []

    def run(self) -> None:
        """Keep until SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            self._write_state(False)
            self.services["prefect"].start()
            self.services["mlflow"].start()
            while not self.stopping:
                self._tick()
                time.sleep(TICK_SECONDS)
        finally:
            for name in ("worker", "mlflow", "prefect"):
                self.services[name].stop()
            self.repair.stop()
            self.deliver.stop()
            (self.root / FOLDER / "state.json").unlink(missing_ok=True)

    def _write_state(self, ready: bool) -> None:
        state = {**self.state, "pid": os.getpid(), "ready": ready}
        write_atomically(self.root / FOLDER / "state.json", json.dumps(state))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    def _tick(self) -> None:
        for service in self.services.values():
            if service.ended():
                self._again(service)
        if not self.ready and self.services["prefect"].healthy():
            self.ready = self._deployed()
        if self.ready and self.services["worker"].process is None:
            self.services["worker"].start()
            self._write_state(True)
            self._pool_due = [time.monotonic() + seconds for seconds in POOL_SECONDS]
        if self.ready and time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._look_after_the_dead()

    def _again(self, service: Service) -> None:
        """Start a service that has ended, after a pause that grows while it keeps ending."""
        assert service.process is not None
        lived = time.monotonic() - service.started
        service.pause = 1.0 if lived > 2 * LONGEST_PAUSE else service.pause
        if lived < service.pause:
            return
        say(f"{service.name} ended with exit code {service.process.returncode}; starting it again, see {service.log}")
        service.pause = min(LONGEST_PAUSE, 2 * service.pause)
        service.start()
        if service.name == "worker":
            self._pool_due = [time.monotonic() + seconds for seconds in POOL_SECONDS]

    def _deployed(self) -> bool:
        """Make the pool and the deployments; False if that must be tried again."""
        environment = {**os.environ, **self.services["worker"].environment}
        done = subprocess.run(self.deploy, env=environment, cwd=self.root, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            say("the deployments could not be made; trying again")
            time.sleep(5.0)
        return done.returncode == 0

    def _look_after_the_dead(self) -> None:
        """Have dead flow runs marked in Prefect, and MLflow get what they could not send any more.

        Each in a process of its own: only that needs Prefect's client, or MLflow's.
        """
        pool_due = bool(self._pool_due) and self._pool_due[0] < time.monotonic() and not self.repair.busy
        self.repair.look(*([self.pool] if pool_due else []))
        self._pool_due = self._pool_due[1:] if pool_due else self._pool_due
        if count := self.deliver.look():
            say(f"MLflow is sent what {count} {'run' if count == 1 else 'runs'} of dead processes left")


def say(text: str) -> None:
    """A line with the time, in the keeper's log."""
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def keep(root: Path) -> None:
    """Run the services of a run root until told to stop.

    Raises:
        AlreadyKept: If somebody does already.
    """
    folder = root / FOLDER
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise AlreadyKept(f"services of {root} run already") from None
    try:
        Keeper(root).run()
    finally:
        os.close(handle)


if __name__ == "__main__":
    try:
        keep(Path(sys.argv[1]))
    except AlreadyKept as error:
        sys.exit(f"rloo: {error}")
