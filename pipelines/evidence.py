"""What MLflow is told about a run, first written to disk: MLflow's copy is made from these files, now or later.

A directory holds the evidence of one run. A pipeline run's is `records/<id>/`, a stage's is `logs/` beside its work,
which goes into the store with it:

    run.json        what it is, who runs it, how it ended
    settings.json   its settings
    metrics.jsonl   every metric, step by step
    tables/ figures/ files/

So no outage of a tracking server, no crash and no deletion in its pages loses anything. Standard library only.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from threading import RLock
from typing import Any

from pipelines.digests import locked, write_atomically
from pipelines.processes import identity, is_dead

STATE = "run.json"
JOURNAL = "metrics.jsonl"
SETTINGS = "settings.json"
PENDING = "tracking"  # below the run root: one file for each run that MLflow has not got completely
RECORDS = "records"  # below the run root: evidence of pipeline runs
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"


def now() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


@dataclass(frozen=True)
class Place:
    """Where a pipeline run stands in a larger one, a study.

    Args:
        record: Name of its record, always the same, so that it is found again.
        name: Shown in lists.
        parent: Key of the study's run.
        tags: For MLflow.
    """

    record: str
    name: str
    parent: str
    tags: dict[str, str]


@dataclass
class RunState:
    """The content of `run.json`.

    Args:
        key: Names the run for good, before MLflow has given it an id and wherever its directory goes.
        name: Shown in lists: the experiment's, or the stage's.
        stage: Name of the stage; "" for a pipeline run.
        fingerprint: Of the stage's result.
        parent: Key of the pipeline run that a stage belongs to; of a pipeline run: of the study's.
        status: RUNNING, FINISHED, FAILED or KILLED.
        attempt: 1, and one more each time it was taken up again.
        started: Milliseconds since 1970.
        ended: The same; None while it runs.
        process: Host, process id and start of the process that runs it.
        tags: For MLflow.
        results: Numbers about the whole run, by name.
        inputs: Fingerprint of each stage whose output is read, by stage.
        model: How the stage's model is to be logged (`ModelWish`); None if there is none.
        notes: What became of each stage of a pipeline run: stage, action, fingerprint, reason, key.
        typed: Overrides and selection of a pipeline run.
        candidate: Whether the policy of a pipeline run may become champion.
        run_id: MLflow's, once it is known.
        place: Which MLflow is to get it (`mlflow_place`); None: that of whoever sends it.
        experiment: The experiment there; "" like `place`.
    """

    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    name: str = ""
    stage: str = ""
    fingerprint: str = ""
    parent: str = ""
    status: str = RUNNING
    attempt: int = 1
    started: int = field(default_factory=now)
    ended: int | None = None
    process: dict[str, str] = field(default_factory=identity)
    tags: dict[str, str] = field(default_factory=dict)
    results: dict[str, float] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    notes: list[dict[str, str]] = field(default_factory=list)
    typed: dict[str, Any] = field(default_factory=dict)
    candidate: bool = False
    run_id: str = ""
    place: str | None = None
    experiment: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""
        return self.status == RUNNING

    @property
    def is_abandoned(self) -> bool:
        """Whether it has not ended, and its process has."""
        return self.is_open and is_dead(self.process)


class Evidence:
    """One run's directory. The training's thread writes to it, the mirror's reads; both hold `lock` meanwhile.

    Args:
        root: The run root.
        directory: Where the files are now; `moved` says where they went.
        state: What `run.json` says, or is to say.
    """

    def __init__(self, root: Path, directory: Path, state: RunState) -> None:
        self.root, self.directory, self.state = root, directory, state
        self.lock = RLock()
        self.version = 0  # counts changes, for whoever copies them
        self.written: dict[str, int] = {}  # version of each file when it was last written

    @classmethod
    def load(cls, root: Path, directory: Path) -> "Evidence | None":
        """The evidence in a directory; None if there is none that can be read."""
        try:
            values = json.loads((directory / STATE).read_text(encoding="utf-8"))
            known = {each.name for each in fields(RunState)}
            evidence = cls(root, directory, RunState(**{k: v for k, v in values.items() if k in known}))
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        evidence.written = dict.fromkeys(evidence.files(), 0)
        return evidence

    def begin(self) -> None:
        """Write `run.json`, and note that MLflow has yet to get this run."""
        self.save()
        self._note_pending()

    def _note_pending(self) -> None:
        if self.state.stage:
            place = {"stage": self.state.stage, "fingerprint": self.state.fingerprint}
        else:
            place = {"record": self.directory.name}
        write_atomically(self._pending, json.dumps(place | identity()))

    def claim(self) -> None:
        """Take over, for this process, the sending of what a dead process left."""
        if self._pending.exists():
            place = json.loads(self._pending.read_text(encoding="utf-8"))
            write_atomically(self._pending, json.dumps(place | identity()))

    def acquire(self) -> bool:
        """Claim the sending of a run that MLflow had got and has lost; False if another living process has."""
        with locked(self.root / "locks" / "tracking"):
            if self.is_others:
                return False
            self._note_pending()
            return True

    @property
    def is_others(self) -> bool:
        """Whether another living process sends this run to MLflow."""
        owner = _owner(self._pending)
        return bool(owner) and owner | identity() != owner and not is_dead(owner)

    def is_taken_over(self) -> bool:
        """Whether another living process goes on with this run."""
        on_disk = Evidence.load(self.root, self.directory)
        if on_disk is None or on_disk.state.key != self.state.key:
            return True
        process = on_disk.state.process
        return process not in (self.state.process, identity()) and not is_dead(process)

    def delivered(self) -> None:
        """Note that MLflow has all of it, unless another living process goes on with it."""
        if not self.is_others:
            self._pending.unlink(missing_ok=True)

    def save(self) -> None:
        """Write `run.json`."""
        with self.lock:
            self.version += 1
            write_atomically(self.directory / STATE, json.dumps(asdict(self.state), indent=1))

    def close(self, status: str) -> None:
        """Note how it ended."""
        with self.lock:
            self.state.status, self.state.ended = status, now()
            self.save()

    def take_up(self, parent: str) -> None:
        """Go on with a run that had ended, or whose process had."""
        with self.lock:
            self.state.status, self.state.ended = RUNNING, None
            self.state.parent, self.state.process = parent, identity()
            self.state.attempt += 1

    def write(self, name: str, content: str | bytes) -> None:
        """Write one of the files, by its name below the directory."""
        with self.lock:
            write_atomically(self.directory / name, content)
            self.version += 1
            self.written[name] = self.version

    def read(self, name: str) -> bytes:
        """The content of one of the files."""
        with self.lock:
            return (self.directory / name).read_bytes()

    def files(self) -> list[str]:
        """Names of tables, figures and other files, sorted."""
        with self.lock:
            found = [p for kind in ("tables", "figures", "files") for p in (self.directory / kind).rglob("*")]
            return sorted(path.relative_to(self.directory).as_posix() for path in found if path.is_file())

    def moved(self, directory: Path) -> None:
        """Say where the directory is now."""
        with self.lock:
            self.directory = directory

    @property
    def _pending(self) -> Path:
        return self.root / PENDING / f"{self.state.key}.json"


def record_directory(root: Path, name: str) -> Path:
    """Where the evidence of a pipeline run lies."""
    return root / RECORDS / name


def pending(root: Path) -> Iterator[Evidence]:
    """Runs of dead processes that MLflow has not got completely, in the order of their start.

    A run that was running ended with its process: FINISHED where its output is published, else KILLED.
    """
    found = [evidence for file in (root / PENDING).glob("*.json") if (evidence := _abandoned(root, file))]
    yield from sorted(found, key=lambda evidence: evidence.state.started)


def undelivered(root: Path) -> list[Path]:
    """The files, below `tracking/`, of the runs that `pending` would yield. Only reads, and leaves the living alone."""
    return sorted(file for file in (root / PENDING).glob("*.json") if is_dead(_owner(file)))


def _owner(file: Path) -> dict[str, str]:
    """Which process sends a run; {} where that cannot be read."""
    try:
        owner = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _abandoned(root: Path, file: Path) -> Evidence | None:
    try:
        place: Mapping[str, str] = json.loads(file.read_text(encoding="utf-8"))
        directories = _places(root, place)
    except (OSError, ValueError, KeyError):
        return None
    if not is_dead(dict(place)):
        return None
    for directory in directories:
        evidence = Evidence.load(root, directory)
        if evidence is not None and evidence.state.key == file.stem:
            if evidence.state.is_open:
                published = bool(evidence.state.stage) and directory == directories[0]
                evidence.close(FINISHED if published else KILLED)
            return evidence
    with suppress(OSError):  # its directory is gone: a forced run replaced it
        file.unlink()
    return None


def _places(root: Path, place: Mapping[str, str]) -> list[Path]:
    """Where evidence may lie: the store first, since what is there is published."""
    if "record" in place:
        return [record_directory(root, place["record"])]
    return [root / part / place["stage"] / place["fingerprint"] / "logs" for part in ("store", "work")]


def new_record_name() -> str:
    """A name for a pipeline run: when it started, and a few letters that tell it from others of that second."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
