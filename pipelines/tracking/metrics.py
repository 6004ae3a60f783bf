"""Metrics on their way to MLflow: collected by the training, sent by a thread, a batch at a time."""

import math
import threading
from collections.abc import Sequence
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import Metric

from pipelines.tracking.connection import Connection
from pipelines.tracking.journal import Line
from pipelines.tracking.names import safe_key

BATCH = 500  # values; log_batch takes 1000
EVERY_SECONDS = 3.0


class MetricWriter:
    """Sends metrics of one run in the background, each (metric, step) once.

    The training only appends to a list. What cannot be sent stays in the list and is tried again; what is left at the
    end is in the journal. Infinite values are sent as NaN, since MLflow would store 1.8e308.

    MLflow is asked what it has of a metric before anything of it is sent again, after a crash as after a call that
    failed: either may have left values behind. Its answer comes from the histories, since the table of latest values,
    which a run is shown with, is written after them. Without an answer nothing is sent: no value appears twice.

    Args:
        connection: Where to send.
        run_id: The run.
        resumed: Whether the run may have metrics already: a resumed stage repeats some steps.
    """

    def __init__(self, connection: Connection, run_id: str, resumed: bool) -> None:
        self._connection = connection
        self._run_id = run_id
        self._uncertain = resumed
        self._known: set[str] = set()  # metrics whose history was read since it became uncertain
        self._there: set[tuple[str, int]] = set()
        self._added: set[tuple[str, int]] = set()
        self._queue: list[Metric] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="mlflow-metrics", daemon=True)
        self._thread.start()

    def add(self, line: Line) -> None:
        """Queue the values of one step; returns at once."""
        with self._lock:
            for name, value in line.values.items():
                key = safe_key(name)
                if (key, line.step) not in self._added:
                    self._added.add((key, line.step))
                    self._queue.append(Metric(key, value if math.isfinite(value) else math.nan, line.time, line.step))
            full = len(self._queue) >= BATCH
        if full:
            self._wake.set()

    def close(self) -> int:
        """Send the rest and stop.

        Returns:
            How many values could not be sent.
        """
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._send_all()
        return len(self._queue)

    def _work(self) -> None:
        while not self._closing:
            self._wake.wait(EVERY_SECONDS)
            self._wake.clear()
            self._send_all()

    def _send_all(self) -> None:
        while self._queue:
            with self._lock:
                batch = self._queue[:BATCH]
            if not self._send(batch):
                return
            with self._lock:
                del self._queue[: len(batch)]

    def _send(self, batch: Sequence[Metric]) -> bool:
        """Send what is not there yet."""
        if self._uncertain and not self._look({metric.key for metric in batch} - self._known):
            return False
        left = [metric for metric in batch if (metric.key, metric.step) not in self._there]
        if left and not self._connection.attempt("log metrics", partial(self._log, left)):
            self._uncertain = True
            self._known -= {metric.key for metric in left}
            return False
        return True

    def _look(self, keys: set[str]) -> bool:
        """Read which steps of these metrics are there."""
        for key in sorted(keys):
            history = self._connection.attempt("read metrics", partial(self._history, key))
            if history is None:
                return False
            self._there |= {(key, metric.step) for metric in history}
            self._known.add(key)
        return True

    def _history(self, key: str, client: MlflowClient) -> list[Metric]:
        return list(client.get_metric_history(self._run_id, key))

    def _log(self, metrics: Sequence[Metric], client: MlflowClient) -> bool:
        client.log_batch(self._run_id, metrics=metrics)
        return True
