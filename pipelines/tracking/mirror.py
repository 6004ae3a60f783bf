"""The thread that keeps MLflow's copy of the evidence up to date, whatever becomes of the server meanwhile.

The training never waits for it. When MLflow is away, everything is on disk; it is sent when MLflow is back, or by the
next process that opens this run root.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipelines.digests import locked
from pipelines.evidence import Evidence, RunState, pending
from pipelines.store import Store
from pipelines.tracking.connection import Connection, first_line
from pipelines.tracking.metrics import BATCH, MetricQueue
from pipelines.tracking.run_copy import KEY, RunCopy

EVERY_SECONDS = 3.0
LONG = 60.0  # seconds of patience from which on a server that works is waited for, however long it takes
PAUSES = (1.0, 3.0, 5.0, 10.0)  # seconds between tries while MLflow is away; the last one repeats
LOG = logging.getLogger("rloo.tracking")


class Mirror:
    """Copies evidence to MLflow in the background.

    Args:
        connection: MLflow.
        store: Where published stages are.
        say: Is told, in one line, what a person should know.
    """

    def __init__(self, connection: Connection, store: Store, say: Callable[[str], None]) -> None:
        self.connection, self.store, self.say = connection, store, say
        self._copies: list[RunCopy] = []
        self._ids: dict[str, str] = {}
        self._left_alone: set[str] = set()  # keys of what another MLflow is to get
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)

    def start(self) -> None:
        """Begin, with what dead processes left."""
        self.adopt()
        self._thread.start()

    def adopt(self) -> None:
        """Take over what dead processes could not send, each to its own experiment; other MLflows' is left for them."""
        others: set[str] = set()
        with locked(self.store.root / "locks" / "tracking"):
            for evidence in pending(self.store.root):
                place = evidence.state.place
                if place is not None and place not in self.connection.places:
                    others.add(place or f"that of {self.store.root}")
                    self._left_alone.add(evidence.state.key)
                    continue
                try:
                    connection = self.connection.of(evidence.state.experiment or self.connection.experiment)
                except Exception as error:
                    self.say(f"the run of {evidence.state.name} waits for the next start: {first_line(error)}")
                    self._left_alone.add(evidence.state.key)
                    continue
                evidence.claim()
                self._copies.append(RunCopy(connection, evidence, self, adopted=True))
        for place in sorted(others):
            self.say(f"what earlier runs left for another MLflow ({place}) waits for `rloo sync` with its tracking.uri")

    def watch(self, evidence: Evidence, queue: MetricQueue | None = None, reused: bool = False) -> RunCopy:
        """Copy a run from now on."""
        evidence.state.place, evidence.state.experiment = self.connection.place, self.connection.experiment
        if not reused:
            evidence.save()
        copy = RunCopy(self.connection, evidence, self, queue, reused=reused)
        others = [each for each in self._copies if each.evidence is not evidence]  # of an earlier attempt
        self._copies = [*others, copy]
        self._wake.set()
        return copy

    def evidence(self, directory: Path) -> Evidence | None:
        """The evidence in a directory: the object that is copied already, if there is one."""
        found = Evidence.load(self.store.root, directory)
        known = (copy.evidence for copy in self._copies)
        return next((each for each in known if found and each.state.key == found.state.key), found)

    def has(self, evidence: Evidence) -> bool:
        """Whether this evidence is being copied, or waits for another MLflow."""
        return evidence.state.key in self._left_alone or any(copy.evidence is evidence for copy in self._copies)

    def wake(self, queue: MetricQueue | None = None) -> None:
        """Something has changed; with a queue: only if it is long."""
        if queue is None or len(queue) >= BATCH:
            self._wake.set()

    def attempt(self) -> bool:
        """Bring everything up to date now, in this thread. Returns whether MLflow was there."""
        try:
            self._round()
        except Exception as error:
            self._is_away(error)
            return False
        self._is_back()
        return True

    def stop(self, patience: float) -> int:
        """Wait until all that has ended is in MLflow, but not for ever.

        Args:
            patience: Seconds to wait while MLflow is away; while it answers, it is given time to finish.

        Returns:
            How many runs could not be sent completely. The next start goes on with them.
        """
        deadline = time.monotonic() + patience
        told = False
        try:
            while self._left() and (time.monotonic() < deadline or (self._failures == 0 and patience >= LONG)):
                self._wake.set()
                if self._failures > 1 and not told and patience >= LONG:
                    told = True
                    self.say(
                        f"MLflow at {self.connection.uri} is away; waiting up to {patience:.0f} s to hand over the "
                        f"rest. Ctrl-C leaves it to the next start"
                    )
                time.sleep(0.05)
        except KeyboardInterrupt:
            pass
        self._stopping.set()
        self._wake.set()
        self._thread.join(1.0)
        return len(self._left())

    def may_close(self, copy: RunCopy) -> bool:
        """Whether a run may end in MLflow: a pipeline run after all its stages."""
        children = (each for each in self._copies if each.evidence.state.parent == copy.evidence.state.key)
        return all(each.done for each in children)

    def id_of(self, key: str, connection: Connection) -> str:
        """MLflow's id of a run, which is opened if it is not there yet; "" if nobody knows it."""
        if not key:
            return ""
        for copy in self._copies:
            if copy.evidence.state.key == key:
                copy.open()
                return copy.run_id
        if key not in self._ids:
            found = connection.client.search_runs([connection.experiment_id], f"tags.`{KEY}` = '{key}'")
            if not found:
                return ""
            self._ids[key] = found[0].info.run_id
        return self._ids[key]

    def run_of(self, stage: str, fingerprint: str) -> str:
        """The MLflow run that made a stage's output; "" if it is not known."""
        for copy in reversed(self._copies):
            state = copy.evidence.state
            if (state.stage, state.fingerprint) == (stage, fingerprint) and state.run_id:
                return state.run_id
        manifest = self.store.manifest(stage, fingerprint)
        return (manifest.run_id if manifest else None) or ""

    def notes(self, state: RunState, connection: Connection) -> dict[str, str]:
        """Tags of a pipeline run that lead to the runs of its stages."""
        base = f"#/experiments/{connection.experiment_id}/runs"
        lines = ["| stage | | run |", "|---|---|---|"]
        tags: dict[str, str] = {}
        for note in state.notes:
            run_id = self.run_of(note["stage"], note["fingerprint"])
            link = f"[{run_id}]({base}/{run_id})" if run_id else "unknown"
            lines.append(f"| {note['stage']} | {note['action']} | {link} |")
            if note["action"] == "reused":
                tags[f"reused.{note['stage']}"] = run_id or "unknown"
        return tags | {"mlflow.note.content": "\n".join(lines)} if state.notes else {}

    def note_run(self, state: RunState) -> None:
        """Let the manifest of a published stage name its MLflow run."""
        manifest = self.store.manifest(state.stage, state.fingerprint) if state.stage else None
        if manifest is not None and state.status == "FINISHED" and manifest.run_id != state.run_id:
            self.store.set_run(manifest, state.run_id)

    def _left(self) -> list[RunCopy]:
        return [copy for copy in self._copies if not copy.done and not copy.evidence.state.is_open]

    def _work(self) -> None:
        while not self._stopping.is_set():
            if self._failures:
                self._stopping.wait(PAUSES[min(self._failures, len(PAUSES)) - 1])
            else:
                self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            with suppress(Exception):  # who is told may be gone: a terminal that was closed
                if not self._stopping.is_set():
                    self.attempt()

    def _round(self) -> None:
        """One pass over all runs: stages before the pipeline runs, whose end waits for them."""
        order = sorted(self._copies, key=lambda copy: not copy.evidence.state.stage)
        for copy in order:
            if copy.done:
                continue
            if copy.adopted and copy.evidence.is_taken_over():
                copy.done = True
                continue
            copy.update()

    def _is_away(self, error: Exception) -> None:
        LOG.warning("MLflow: %s", error, exc_info=self._failures == 0)
        self._failures += 1
        if self._failures == 2:  # a database that was locked for a moment is no news
            self.connection.warn(
                f"MLflow does not answer, and the run goes on without; what it should get is kept and sent later: "
                f"{first_line(error)}"
            )

    def _is_back(self) -> None:
        failures, self._failures = self._failures, 0
        if failures > 1:
            self.say("MLflow answers again; what it missed has been sent")
