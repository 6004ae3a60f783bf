"""Metrics on their way to MLflow: collected by the training, sent by the mirror, a batch at a time."""

import math
import threading
from collections.abc import Callable, Iterable

from mlflow import MlflowClient
from mlflow.entities import Metric

from pipelines.tracking.journal import Line
from pipelines.tracking.names import Names

BATCH = 500  # values; log_batch takes 1000


class MetricQueue:
    """The values of one run that are not in MLflow yet; each (metric, step) is sent once.

    The training only appends to a list. What cannot be sent stays in the list; whatever happens, it is in the journal.
    Infinite values are sent as NaN, since MLflow would store 1.8e308.

    MLflow is asked what it has of a metric before anything of it is sent again, after a crash as after a call that
    failed: either may have left values behind. Its answer comes from the histories, since the table of latest values,
    which a run is shown with, is written after them. Without an answer nothing is sent: no value appears twice.

    Args:
        resumed: Whether the run may have metrics already: a resumed stage repeats some steps.
        names: Turns the names of metrics into MLflow's.
    """

    def __init__(self, resumed: bool, names: Names | None = None) -> None:
        self._uncertain = resumed
        self._names = names or Names()
        self._known: set[str] = set()  # metrics whose history was read since it became uncertain
        self._there: set[tuple[str, int]] = set()
        self._added: set[tuple[str, int]] = set()
        self._queue: list[Metric] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, line: Line) -> None:
        """Queue the values of one step; returns at once."""
        with self._lock:
            for name, value in line.values.items():
                key = self._names.safe(name)
                if (key, line.step) not in self._added:
                    self._added.add((key, line.step))
                    self._queue.append(Metric(key, value if math.isfinite(value) else math.nan, line.time, line.step))

    def refill(self, read: Callable[[], Iterable[Line]]) -> None:
        """Start again with everything the journal has: the run in MLflow is a new one.

        The journal is read after the queue is emptied: a step that is reported meanwhile is in one of them, or in both.
        """
        with self._lock:
            self._queue.clear()
            self._added.clear()
        self.doubt()
        for line in read():
            self.add(line)

    def doubt(self) -> None:
        """From now on ask what is there: the run was opened again, or may be another."""
        self._uncertain = True
        self._known.clear()
        self._there.clear()

    def send(self, client: MlflowClient, run_id: str) -> None:
        """Send all that is queued.

        Raises:
            Exception: MLflow's; what is left stays queued.
        """
        while self._queue:
            with self._lock:
                batch = self._queue[:BATCH]
            self._send(client, run_id, batch)
            with self._lock:
                del self._queue[: len(batch)]

    def _send(self, client: MlflowClient, run_id: str, batch: list[Metric]) -> None:
        keys = {metric.key for metric in batch}
        if self._uncertain:
            for key in sorted(keys - self._known):
                self._there |= {(key, metric.step) for metric in client.get_metric_history(run_id, key)}
                self._known.add(key)
        left = [metric for metric in batch if (metric.key, metric.step) not in self._there]
        if not left:
            return
        try:
            client.log_batch(run_id, metrics=left)
        except Exception:
            self._uncertain = True
            self._known -= keys
            raise
