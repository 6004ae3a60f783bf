"""What can be removed from a run root: outputs that nothing refers to any more, and work that nobody goes on with.

An output stays if one of these needs it, directly or as an input of what they need:

- a registered model version in MLflow,
- one of the newest pipeline runs, or one that is running,
- a model that MLflow has yet to get,
- a stage that is being computed (its lock is held).
"""

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipelines.disk import used
from pipelines.evidence import PENDING, RUNNING
from pipelines.records import records
from pipelines.store import CHECKPOINTS, Store
from rloo_core.stages import STAGES

Output = tuple[str, str]  # stage, fingerprint


@dataclass(frozen=True)
class Removal:
    """A directory that can go, and why."""

    path: Path
    stage: str
    fingerprint: str
    reason: str
    size: int


def removals(store: Store, registered: Iterable[Output], keep_runs: int) -> list[Removal]:
    """What would go, the largest first.

    Args:
        store: Of the run root.
        registered: Outputs that registered models were made by.
        keep_runs: How many of the newest pipeline runs keep their outputs.
    """
    needed = with_inputs(store, {*registered, *_of_runs(store, keep_runs), *_to_be_sent(store)})
    found = [*_outputs(store, needed), *_work(store, needed)]
    return sorted(found, key=lambda removal: removal.size, reverse=True)


def remove(removal: Removal, store: Store) -> bool:
    """Remove it, unless its lock is held or a run that goes on reads it by now. Returns whether it is gone."""
    output = (removal.stage, removal.fingerprint)
    with _Locked(store, *output) as free:
        if free and output not in with_inputs(store, set(_of_runs(store, 0))):
            if removal.path == store.path(removal.stage, removal.fingerprint):
                store.note_pruned(removal.stage, removal.fingerprint)
            shutil.rmtree(removal.path, ignore_errors=True)
    return not removal.path.exists()


def with_inputs(store: Store, outputs: Collection[Output]) -> set[Output]:
    """The outputs, and all that they were made from."""
    needed: set[Output] = set()
    waiting = list(outputs)
    while waiting:
        output = waiting.pop()
        if output in needed:
            continue
        needed.add(output)
        manifest = store.manifest(*output)
        if manifest is not None:
            waiting += [(stage, each["fingerprint"]) for stage, each in manifest.inputs.items()]
    return needed


def _of_runs(store: Store, keep: int) -> Iterator[Output]:
    every = records(store.root)
    newest = [record for record in every if not record.state.parent][:keep]  # the points of a study count as one run
    kept = {record.state.key for record in newest}
    for record in every:
        if kept & {record.state.key, record.state.parent} or record.status == RUNNING:
            yield from ((note["stage"], note["fingerprint"]) for note in record.state.notes)


def _to_be_sent(store: Store) -> Iterator[Output]:
    """The outputs whose MLflow run is not complete, so that their models may not be registered yet."""
    for file in (store.root / PENDING).glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            place = json.loads(file.read_text(encoding="utf-8"))
            yield place["stage"], place["fingerprint"]


def _outputs(store: Store, needed: Collection[Output]) -> Iterator[Removal]:
    for stage in STAGES:
        for directory in sorted((store.root / "store" / stage).glob("*")):
            output = (stage, directory.name)
            left = directory / CHECKPOINTS  # by a process that was killed between publishing and removing them
            if not _is_free(store, *output):
                continue
            if output not in needed:
                why = "output of no run that is kept and no registered model"
                yield Removal(directory, *output, why, used(directory))
            elif left.is_dir():
                yield Removal(left, *output, "checkpoints of a stage that has finished", used(left))


def _work(store: Store, needed: Collection[Output]) -> Iterator[Removal]:
    for stage in STAGES:
        for directory in sorted((store.root / "work" / stage).glob("*")):
            fingerprint = directory.name.partition(".")[0]  # fp, fp.old, fp.accepted
            if not _is_free(store, stage, fingerprint):
                continue
            if directory.name.endswith(".old"):
                yield Removal(directory, stage, fingerprint, "replaced by a newer output", used(directory))
            elif store.manifest(stage, fingerprint) is not None:
                yield Removal(
                    directory, stage, fingerprint, "checkpoints of a stage that has finished", used(directory)
                )
            elif (stage, fingerprint) not in needed:
                yield Removal(directory, stage, fingerprint, "checkpoints of no run that is kept", used(directory))


def _is_free(store: Store, stage: str, fingerprint: str) -> bool:
    with _Locked(store, stage, fingerprint) as free:
        return free


class _Locked:
    """Tries the lock of a stage; says whether it was free."""

    def __init__(self, store: Store, stage: str, fingerprint: str) -> None:
        self._path = store.root / "locks" / f"{stage}-{fingerprint}"
        self._handle: int | None = None

    def __enter__(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
