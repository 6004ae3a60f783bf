"""What became of each flow run, kept below the run root until the Prefect server is known to have it.

    flows/<flow run>.json   the tasks and their states, how the run ended
    flows/<flow run>.lock   held by the process that runs it; the kernel frees it however the process ends

Prefect's states travel as events, which an outage loses, and a killed process says nothing at all. From these files
`flow_repair` tells the server afterwards what is true. Standard library only.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pipelines.digests import write_atomically

FOLDER = "flows"


@dataclass(frozen=True)
class State:
    """A Prefect state: type (COMPLETED, FAILED, CRASHED, RUNNING, ...), name (Completed, Reused, ...), message."""

    type: str
    name: str
    message: str = ""


@dataclass(frozen=True)
class TaskRecord:
    """One task run, that of a stage."""

    stage: str
    key: str  # Prefect's task key and
    dynamic_key: str  # number, without which a lost task run cannot be created again
    state: State


@dataclass
class FlowRecord:
    """One flow run. Made by `hold` in the process that runs it, and by `dead` when that process is gone."""

    path: Path
    flow_run: str
    api: str
    tasks: dict[str, TaskRecord] = field(default_factory=dict)
    end: State | None = None
    lock: int | None = field(default=None, repr=False)  # file descriptor

    def task(self, task_run: str, record: TaskRecord) -> None:
        """Note the state of a task run."""
        self.tasks[task_run] = record
        self._write()

    def ended(self, state: State) -> None:
        """Note how the flow run ended."""
        self.end = state
        self._write()

    def forget(self) -> None:
        """The server knows everything: nothing is left to repair."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Let others repair it."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def _write(self) -> None:
        values: dict[str, object] = {"flow_run": self.flow_run, "api": self.api}
        values |= {"tasks": {run: asdict(task) for run, task in self.tasks.items()}}
        values |= {"end": asdict(self.end) if self.end else None}
        with suppress(OSError):  # a full disk is told by what needs the space
            write_atomically(self.path, json.dumps(values, indent=1))


def read(path: Path) -> FlowRecord:
    """Read a record.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        tasks = {run: TaskRecord(**{**task, "state": State(**task["state"])}) for run, task in values["tasks"].items()}
        end = State(**values["end"]) if values["end"] else None
        return FlowRecord(path, values["flow_run"], values["api"], tasks, end)
    except (OSError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no record of a flow run: {error}") from error


def hold(root: Path, flow_run: str, api: str) -> FlowRecord:
    """The record of a flow run that this process runs, held until `release`, `forget`, or the end of the process.

    A record of an earlier attempt is taken over: a retry has the same flow run.
    """
    path = root / FOLDER / f"{flow_run}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(path.with_suffix(".lock"), wait=True)
    tasks = {}
    with suppress(ValueError):
        tasks = read(path).tasks
    record = FlowRecord(path, flow_run, api, tasks, lock=lock)
    record._write()
    return record


@contextmanager
def dead(path: Path) -> Iterator[FlowRecord | None]:
    """The record at `path` if its process is gone, held so that nobody else repairs it; None otherwise."""
    lock = _lock(path.with_suffix(".lock"), wait=False)
    try:
        record = None
        if lock is not None:
            with suppress(ValueError):
                record = read(path)
        yield record
    finally:
        if lock is not None:
            os.close(lock)


def left_behind(root: Path) -> list[Path]:
    """Records whose processes are gone."""
    found = []
    for path in sorted((root / FOLDER).glob("*.json")):
        with dead(path) as record:
            if record is not None:
                found.append(path)
    return found


def _lock(path: Path, wait: bool) -> int | None:
    """Lock a file that may be removed by whoever held it before; None if it is held and `wait` is false."""
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            pass
        os.close(handle)
        time.sleep(0.01)
