"""What a stage reports, written down as evidence; the mirror sends it to MLflow."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.evidence import FINISHED, JOURNAL, Evidence, now
from pipelines.tracking.journal import Journal, Line, read_journal
from pipelines.tracking.metrics import MetricQueue
from pipelines.tracking.mirror import Mirror
from pipelines.tracking.models import ModelWish
from pipelines.tracking.names import safe_key
from rloo_core.observer import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_DPI = 130


class StageRun:
    """The evidence of a stage that runs. Made by `Tracker.start_stage`; takes what an `Observer` takes.

    No call waits for MLflow.

    Args:
        evidence: Where it is written. If it has a journal, the stage goes on after a crash, and its steps count once.
        mirror: Copies it to MLflow.
        resumed: Whether the run was there before.
    """

    def __init__(self, evidence: Evidence, mirror: Mirror, resumed: bool) -> None:
        self.evidence = evidence
        self.stage = evidence.state.stage
        self._mirror = mirror
        path = evidence.directory / JOURNAL
        before = read_journal(path)
        self._journal = Journal(path)
        self._queue = MetricQueue(resumed)
        for line in before:
            self._queue.add(line)
        mirror.watch(evidence, self._queue)

    @property
    def run_id(self) -> str:
        """MLflow's id; "" until MLflow has given one."""
        return self.evidence.state.run_id

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step to the journal, and queue them."""
        line = Line(step, {name: float(value) for name, value in values.items()}, now())
        self._journal.write(line)
        self._queue.add(line)
        self._mirror.wake(self._queue)

    def table(self, name: str, rows: Sequence[Row]) -> None:
        """Write `tables/<name>.json` in the format MLflow's pages show as a table, in place of an earlier one."""
        write_table(self.evidence, name, rows)

    def figure(self, name: str, figure: "Figure") -> None:
        """Write `figures/<name>.png`."""
        write_figure(self.evidence, name, figure)

    def summary(self, values: Mapping[str, float]) -> None:
        """Note the numbers that describe the stage's result."""
        self.evidence.state.results = {name: float(value) for name, value in values.items()}
        self.evidence.save()

    def model(self, wish: ModelWish) -> None:
        """Have the stage's model logged and registered, once the stage is published."""
        self.evidence.state.model = asdict(wish)
        self.evidence.save()

    def finish(self, status: str, published: Path | None = None) -> None:
        """End the run as FINISHED, FAILED or KILLED.

        Args:
            status: How it ended.
            published: Where the evidence is now, if the stage was published.
        """
        self._journal.close()
        if published is not None:
            self.evidence.moved(published)
        assert status != FINISHED or published is not None, "a stage is finished when it is published"
        self.evidence.close(status)
        self._mirror.wake()


def write_table(evidence: Evidence, name: str, rows: Sequence[Row]) -> None:
    """Write `tables/<name>.json` in the format MLflow's pages show as a table."""
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    data = [[_plain(row.get(column)) for column in columns] for row in rows]
    content = json.dumps({"columns": columns, "data": data}, ensure_ascii=False)
    evidence.write(f"tables/{_file_name(name)}.json", content)


def write_figure(evidence: Evidence, name: str, figure: "Figure", kind: str = "png") -> None:
    """Write `figures/<name>.png`, or `.svg`."""
    options: dict[str, Any] = {"format": kind, "dpi": FIGURE_DPI, "bbox_inches": "tight"}
    picture = io.BytesIO()
    figure.savefig(picture, **options)
    evidence.write(f"figures/{_file_name(name)}.{kind}", picture.getvalue())


def _file_name(name: str) -> str:
    return safe_key(name).replace(":", "_")


def _plain(value: object) -> object:
    """A table cell as JSON: numbers that JSON has not become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
