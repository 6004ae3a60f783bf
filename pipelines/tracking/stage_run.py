"""One MLflow run of one stage: parameters, metrics, tables, figures, datasets, the model."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput, Param

from pipelines.tracking.connection import Connection
from pipelines.tracking.datasets import dataset_inputs
from pipelines.tracking.journal import Journal, Line, read_journal
from pipelines.tracking.metrics import MetricWriter
from pipelines.tracking.models import ModelReference, log_model, model_of, register
from pipelines.tracking.names import flatten, safe_key
from rloo_core.observer import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARAMS_A_CALL = 100
FIGURE_DPI = 130


class StageRun:
    """The evidence of a stage that runs. Made by `Tracker.start_stage`; takes what an `Observer` takes.

    Args:
        connection: Where to.
        run_id: The MLflow run.
        stage: Name of the stage.
        journal: Path of `metrics.jsonl`. If it exists, the stage goes on after a crash, and its steps count once.
    """

    def __init__(self, connection: Connection, run_id: str, stage: str, journal: Path) -> None:
        self.run_id = run_id
        self.stage = stage
        self._connection = connection
        self._tables: list[str] = []
        self._closed = False
        self._curves: set[str] = set()
        resumed, before = journal.exists(), read_journal(journal)
        self._journal = Journal(journal)
        self._writer = MetricWriter(connection, run_id, resumed)
        for line in before:
            self._send(line)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step to the journal, and send them in the background."""
        line = Line(step, {name: float(value) for name, value in values.items()}, int(time.time() * 1000))
        self._journal.write(line)
        self._send(line)

    def _send(self, line: Line) -> None:
        self._curves |= {safe_key(name) for name in line.values}
        self._writer.add(line)

    def table(self, name: str, rows: Sequence[Row]) -> None:
        """Log `tables/<name>.json` in the format MLflow's pages show as a table, in place of an earlier one."""
        columns = list(dict.fromkeys(str(key) for row in rows for key in row))
        data = [[_plain(row.get(column)) for column in columns] for row in rows]
        path = f"tables/{safe_key(name).replace(':', '_')}.json"
        if path not in self._tables:
            self._tables.append(path)
        listed = json.dumps([{"path": path, "type": "table"} for path in self._tables])

        def send(client: MlflowClient) -> None:
            content = json.dumps({"columns": columns, "data": data}, ensure_ascii=False)
            client.log_text(self.run_id, content, path)
            client.set_tag(self.run_id, "mlflow.loggedArtifacts", listed)

        self._connection.attempt(f"log the table {name}", send)

    def figure(self, name: str, figure: "Figure") -> None:
        """Log `figures/<name>.png`."""
        path = f"figures/{safe_key(name).replace(':', '_')}.png"
        options: dict[str, Any] = {"dpi": FIGURE_DPI, "bbox_inches": "tight"}
        self._connection.attempt(
            f"log the figure {name}", lambda client: client.log_figure(self.run_id, figure, path, save_kwargs=options)
        )

    def settings(self, settings: Mapping[str, object]) -> None:
        """Log a stage's validated settings, as parameters and complete in `settings.json`."""
        params = [Param(key, value) for key, value in flatten(settings).items()]

        def send(client: MlflowClient) -> None:
            for start in range(0, len(params), PARAMS_A_CALL):
                client.log_batch(self.run_id, params=params[start : start + PARAMS_A_CALL])
            client.log_text(self.run_id, json.dumps(settings, indent=2, default=str), "settings.json")

        self._connection.attempt("log parameters", send)

    def lineage(self, data: Path | None, upstream: Mapping[str, str], stored: Path | None = None) -> None:
        """Link what the stage reads.

        Args:
            data: Output directory of the data stage, if it is known yet.
            upstream: MLflow run of each stage whose output is read, by stage name.
            stored: Where that directory will be, if it is not published yet.
        """

        def send(client: MlflowClient) -> None:
            models = [model for run_id in upstream.values() if (model := model_of(client, run_id))]
            links = [LoggedModelInput(model.model_id) for model in models]
            datasets = dataset_inputs(self.stage, data, stored or data) if data is not None else []
            if datasets or links:
                client.log_inputs(self.run_id, datasets=datasets, models=links)

        self._connection.attempt("link datasets and models", send)

    def model(
        self,
        directory: Path,
        stored: Path,
        upstream: Mapping[str, str],
        tags: Mapping[str, str],
        copy: bool,
        name: str | None,
    ) -> ModelReference | None:
        """Log a Hugging Face directory as a model, and register it.

        Args:
            directory: The directory now.
            stored: Where it will be once the stage is published.
            upstream: MLflow run of each stage whose output was read, by stage name.
            tags: Tags for model and version: fingerprint, digest of the data.
            copy: Whether the files go to MLflow, or only a pointer.
            name: Registered model; None to leave it unregistered.

        Returns:
            The model; None if MLflow refused it.
        """

        def send(client: MlflowClient) -> ModelReference:
            parents = {stage: model_of(client, run_id) for stage, run_id in upstream.items()}
            origin = {f"from.{stage}": str(model) for stage, model in parents.items() if model} | dict(tags)
            model = log_model(self._connection, self.run_id, self.stage, directory, origin, copy, stored)
            return register(self._connection, model, name, self.run_id, origin) if name else model

        return self._connection.attempt("log the model", send)

    def summary(self, values: Mapping[str, float]) -> None:
        """Log a stage's summary; a name that is a curve already becomes `summary/<name>`."""
        named = {f"summary/{key}" if safe_key(key) in self._curves else key: value for key, value in values.items()}
        self._writer.add(Line(0, {key: float(value) for key, value in named.items()}, int(time.time() * 1000)))

    def close(self) -> None:
        """Send what is left and close the journal; the run stays open until `finish`."""
        if not self._closed:
            self._closed = True
            left = self._writer.close()
            self._journal.close()
            if left:
                tag = ("metrics.not_sent", str(left))
                self._connection.attempt("tag a run", lambda client: client.set_tag(self.run_id, *tag))

    def finish(self, status: str) -> None:
        """Close, and end the run as FINISHED, FAILED or KILLED."""
        self.close()
        self._connection.attempt("end a run", lambda client: client.set_terminated(self.run_id, status))


def _plain(value: object) -> object:
    """A table cell as JSON: numbers that JSON has not become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
