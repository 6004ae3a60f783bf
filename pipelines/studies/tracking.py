"""The study's own MLflow run: its points are its children; tables, figures and the page are kept with it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.evidence import RUNNING, SETTINGS, Evidence, RunState, record_directory
from pipelines.store import Store
from pipelines.studies.definition import Definition
from pipelines.tracking.connection import Connection
from pipelines.tracking.mirror import Mirror
from pipelines.tracking.stage_run import write_figure, write_table
from pipelines.tracking.tracker import PATIENCE
from rloo_core.settings import TrackingSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class StudyRun:
    """The evidence of a study, and MLflow's copy of it.

    Args:
        root: The run root.
        record: Name of the study's record, the same whenever the same study is started.
        tracking: Where MLflow is.
        warn: Is told what a person should know.
        say: The same, when it is good news.
    """

    def __init__(
        self,
        root: Path,
        record: str,
        tracking: TrackingSettings,
        warn: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self.root, self.warn = root, warn
        self.connection = Connection(tracking, root.absolute(), warn)
        self.mirror = Mirror(self.connection, Store(root), say)
        directory = record_directory(root, record)
        self.evidence = Evidence.load(root, directory) or Evidence(root, directory, RunState())

    @property
    def key(self) -> str:
        """What the points name as their parent."""
        return self.evidence.state.key

    @property
    def run_id(self) -> str:
        """MLflow's id; "" until MLflow has given one."""
        return self.evidence.state.run_id

    def start(self, study: Definition, typed: Mapping[str, Any]) -> None:
        """Open the run, or open it again: points that are added belong to it, too."""
        state = self.evidence.state
        if state.status != RUNNING or (self.evidence.directory / SETTINGS).exists():
            self.evidence.take_up("")
        state.name, state.typed = f"study {study.name}", dict(typed)
        state.tags |= {
            "study": study.name,
            "profile": study.profile,
            "record": self.evidence.directory.name,
            "seeds": f"{study.seeds}, {study.seeds.vary}",
            "mlflow.note.content": f"{study.title}\n\n{study.question}",
        }
        self.evidence.write(SETTINGS, json.dumps(study.model_dump(mode="json"), indent=1))
        self.evidence.begin()
        self.mirror.watch(self.evidence)
        self.mirror.attempt()  # so that the points find it; before the thread starts, which does the same
        self.mirror.start()

    def progress(self, text: str) -> None:
        """Say in a tag how far it is."""
        self.tag("progress", text)

    def tag(self, name: str, value: str) -> None:
        """Say something about it in a tag."""
        self.evidence.state.tags[name] = value
        self.evidence.save()

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep a table."""
        write_table(self.evidence, name, rows)

    def figure(self, name: str, figure: "Figure") -> None:
        """Keep a figure, for the screen and for print."""
        for kind in ("png", "svg"):
            write_figure(self.evidence, name, figure, kind)

    def file(self, name: str, content: str) -> Path:
        """Keep a file; where it lies."""
        self.evidence.write(f"files/{name}", content)
        return self.evidence.directory / "files" / name

    def results(self, values: Mapping[str, float]) -> None:
        """The numbers that the study's run shows in MLflow's list."""
        self.evidence.state.results = dict(values)

    def finish(self, status: str) -> None:
        """End the run; the thread that sends it ends, too, where its end cannot be written (a full disk)."""
        try:
            self.evidence.close(status)
        finally:
            left = self.mirror.stop(PATIENCE[status])
        if left:
            self.warn("MLflow has not got everything of the study; it is kept and sent at the next start")
