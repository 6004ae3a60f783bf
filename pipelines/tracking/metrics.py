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

    Args:
        connection: Where to send.
        run_id: The run.
        sent: What the run already has, as (metric, step): a resumed stage repeats some steps.
    """

    def __init__(self, connection: Connection, run_id: str, sent: set[tuple[str, int]]) -> None:
        self._connection = connection
        self._run_id = run_id
        self._seen = sent
        self._queue: list[Metric] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="mlflow-metrics", daemon=True)
        self._thread.start()

    def has(self, key: str) -> bool:
        """Whether a metric of this name was reported."""
        return any(key == seen for seen, _ in self._seen)

    def add(self, line: Line) -> None:
        """Queue the values of one step; returns at once."""
        with self._lock:
            for name, value in line.values.items():
                key = safe_key(name)
                if (key, line.step) not in self._seen:
                    self._seen.add((key, line.step))
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
            if not self._connection.attempt("log metrics", partial(self._send, batch)):
                return
            with self._lock:
                del self._queue[: len(batch)]

    def _send(self, batch: Sequence[Metric], client: MlflowClient) -> bool:
        client.log_batch(self._run_id, metrics=batch)
        return True


def sent_before(connection: Connection, run_id: str) -> set[tuple[str, int]]:
    """What a run has already, as (metric, step)."""

    def ask(client: MlflowClient) -> set[tuple[str, int]]:
        keys = client.get_run(run_id).data.metrics
        return {(key, metric.step) for key in keys for metric in client.get_metric_history(run_id, key)}

    return connection.attempt("read the metrics of a resumed stage", ask) or set()
