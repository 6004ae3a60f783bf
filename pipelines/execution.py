"""One stage: reused if it is there, computed under its lock otherwise, published when it is complete."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.console import Console, StageDisplay
from pipelines.fingerprint import LIBRARIES, installed
from pipelines.launched import run_stage
from pipelines.outcome import Outcome
from pipelines.plan import PlannedStage, Planner, explain
from pipelines.store import LOGS, Manifest, Store
from pipelines.unfinished import Unfinished, accepted, note_parts, take_up
from rloo_core.observer import Row
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pipelines.tracking import ModelWish, StageRun, Tracker

LOG = logging.getLogger("rloo.stages")
MODEL = "model"  # below a stage's directory: a Hugging Face model with its tokenizer


class StageFailed(Exception):
    """A stage raised an error; `__cause__` is the error."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class StageExited(Exception):
    """A stage's code called `sys.exit`, which would end the run without a word."""

    def __init__(self, code: object) -> None:
        called = f"sys.exit({'' if code is None else repr(code)})"
        super().__init__(f"its code called {called}, but a stage (and a reward function) returns or raises an error")


@dataclass(frozen=True)
class StageObserver:
    """Passes on what a stage reports: numbers, tables and figures to MLflow, progress to the terminal."""

    run: "StageRun"
    display: StageDisplay

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Values of one step."""
        self.run.metrics(step, values)

    def table(self, name: str, rows: Sequence[Row]) -> None:
        """A complete table."""
        self.run.table(name, rows)

    def figure(self, name: str, figure: "Figure") -> None:
        """A finished figure."""
        self.run.figure(name, figure)

    def progress(self, done: int, total: int, note: str = "") -> None:
        """How far the stage is."""
        self.display.progress(done, total, note)

    def message(self, text: str) -> None:
        """One line a person should read."""
        self.display.message(text)


class Executor:
    """Runs the stages of one run, in order, and remembers what they left.

    Args:
        settings: Of the whole run.
        planner: Says whether a stage is reused, run or skipped.
        store: Where finished stages are.
        tracker: The MLflow run.
        console: What a person sees.
        plan: What is expected of each stage: outputs that a stage will read are hashed before.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        planner: Planner,
        store: Store,
        tracker: "Tracker",
        console: Console,
        plan: Sequence[PlannedStage] = (),
    ) -> None:
        self.settings, self.planner, self.store = settings, planner, store
        self.tracker, self.console = tracker, console
        running = [stage.name for stage in plan if stage.action in ("run", "depends")]
        self._read = {name for stage in running for name in STAGES[stage].inputs}
        self.manifests: dict[str, Manifest] = {}
        self.outcomes: dict[str, Outcome] = {}

    def run(self, name: str) -> Outcome:
        """Reuse or compute one stage; the stages it reads come before.

        Raises:
            StageFailed: From the stage's error.
        """
        verify = name in self._read  # bytes are hashed before they are used
        planned = self.planner.resolve(name, self._inputs(name), verify)
        if planned.action == "run" or _is_of_other_code(planned):
            assert planned.fingerprint is not None
            with self.store.lock(name, planned.fingerprint, on_wait=self.console.line):
                planned = self.planner.resolve(name, self._inputs(name), verify)  # it may have been computed meanwhile
                outcome = self._compute(planned) if planned.action == "run" else self._reuse(planned)
        else:
            outcome = self._reuse(planned)
        self.outcomes[name] = outcome
        return outcome

    def _inputs(self, name: str) -> dict[str, Manifest]:
        return {stage: self.manifests[stage] for stage in STAGES[name].inputs}

    def _directories(self, name: str) -> dict[str, Path]:
        return {stage: self.store.path(stage, m.fingerprint) for stage, m in self._inputs(name).items()}

    def _reuse(self, planned: PlannedStage) -> Outcome:
        manifest = planned.manifest
        assert manifest is not None, f"{planned.name} is to be {planned.action}d, but has no manifest"
        if _is_of_other_code(planned):
            manifest = self._take_over(planned, manifest)
        self.manifests[planned.name] = manifest
        self.tracker.reused(manifest)
        self.console.reused(planned.name)
        return self._outcome(manifest, reused=True)

    def _take_over(self, planned: PlannedStage, earlier: Manifest) -> Manifest:
        """An output of other code that a person has accepted, under the fingerprint of this code; MLflow is told."""
        assert planned.fingerprint is not None
        assert planned.parts is not None
        changed = explain(earlier.parts, planned.parts)
        self.tracker.tag(f"accepted.{planned.name}", f"{earlier.fingerprint}: {', '.join(changed)}")
        self.console.line(f"{planned.name:<14} accepted: {', '.join(changed)}")
        return self.store.take_over(earlier, planned.fingerprint, planned.parts, changed)

    def _take_up(self, planned: PlannedStage, unfinished: Unfinished) -> None:
        """Checkpoints of other code that a person has accepted, to go on with; MLflow is told."""
        assert planned.fingerprint is not None
        assert planned.parts is not None
        name, changed = planned.name, explain(unfinished.parts, planned.parts)
        work = self.store.work(name, unfinished.fingerprint)
        with (
            self.store.lock(name, unfinished.fingerprint, on_wait=self.console.line),
            self.tracker.moving(work, planned.fingerprint) as moved,
        ):
            if not take_up(self.store, name, unfinished, planned.fingerprint, changed):
                return
            moved(self.store.work(name, planned.fingerprint))
        self.tracker.tag(f"accepted.{name}", f"{unfinished.fingerprint}: {', '.join(changed)}")
        self.console.line(f"{name:<14} accepted, and goes on from its checkpoints: {', '.join(changed)}")

    def _compute(self, planned: PlannedStage) -> Outcome:
        name, fingerprint = planned.name, planned.fingerprint
        assert fingerprint is not None
        if planned.reason == "forced" and not self.tracker.began(self.store.work(name, fingerprint)):
            self.store.discard_work(name, fingerprint)
        if planned.unfinished is not None:
            self._take_up(planned, planned.unfinished)
        work = self.store.work(name, fingerprint)
        note_parts(work, planned.parts or {})
        settings = STAGES[name].settings(self.settings).model_dump(mode="json")
        inputs = {stage: manifest.fingerprint for stage, manifest in self._inputs(name).items()}
        run = self.tracker.start_stage(name, fingerprint, settings, work, inputs)
        try:
            with self.console.stage(name) as display:
                manifest = self._compute_in(work, planned, run, StageObserver(run, display))
        except BaseException as error:
            run.finish("FAILED" if isinstance(error, Exception) else "KILLED")
            if isinstance(error, Exception):
                raise StageFailed(name) from error
            raise
        self.manifests[name] = manifest
        return self._outcome(manifest, reused=False)

    def _compute_in(self, work: Path, planned: PlannedStage, run: "StageRun", observer: StageObserver) -> Manifest:
        """Call the stage's function in its work directory, and publish what it made."""
        name = planned.name
        started = time.monotonic()
        stage = STAGES[name]
        try:
            summary = run_stage(stage, stage.settings(self.settings), self._directories(name), work, observer)
        except SystemExit as error:
            raise StageExited(error.code) from error
        run.summary(summary)
        if (work / MODEL / "config.json").exists():
            run.model(self._model_wish(planned))
        assert planned.fingerprint is not None
        assert planned.parts is not None
        with run.evidence.lock:  # it moves
            manifest = self.store.publish(
                name,
                planned.fingerprint,
                parts=planned.parts,
                inputs=self._inputs(name),
                summary=summary,
                duration=time.monotonic() - started,
                versions={library: installed(library) for library in LIBRARIES},
                run_id=run.run_id or None,
                accepted=accepted(work),
            )
            run.finish("FINISHED", published=self.store.path(name, planned.fingerprint) / LOGS)
        return manifest

    def _model_wish(self, planned: PlannedStage) -> "ModelWish":
        """How the model of a training stage is logged, with the digests of what it was made from."""
        from pipelines.tracking import ModelWish

        name, tracking = planned.name, self.settings.tracking
        tags = {"stage": name, "fingerprint": str(planned.fingerprint)}
        tags |= {f"digest.{stage}": manifest.digest for stage, manifest in self._inputs(name).items()}
        tags |= {"from.data": self.manifests["data"].digest[:32]} if "data" in self.manifests else {}
        registered = f"{tracking.experiment}-{name.replace('_', '-')}" if tracking.register_models else None
        return ModelWish(tracking.log_models, registered, tags)

    def _outcome(self, manifest: Manifest, reused: bool) -> Outcome:
        directory = self.store.path(manifest.stage, manifest.fingerprint)
        return Outcome(manifest.stage, directory, manifest.run_id or "", reused, manifest.summary, manifest.duration)


def _is_of_other_code(planned: PlannedStage) -> bool:
    """Whether an output is reused that a person has accepted for this code, and that stands for it from now on."""
    return planned.manifest is not None and planned.manifest.fingerprint != planned.fingerprint
