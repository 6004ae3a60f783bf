"""One pipeline run that is ready to start: its plan is made, its MLflow run is open. With Prefect or without."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pipelines.execution import Executor
from pipelines.outcome import Execute
from pipelines.plan import PlannedStage, Selection
from rloo_core.settings import ExperimentSettings


@dataclass
class Job:
    """What a run does.

    Args:
        settings: Of the whole run.
        overrides: What a person typed.
        selection: Which stages.
        plan: What will be done with each stage, and why.
        executor: Runs one stage.
        done: Whether all stages are finished; what goes wrong later is no failure of the run.
    """

    settings: ExperimentSettings
    overrides: Sequence[str]
    selection: Selection
    plan: Sequence[PlannedStage]
    executor: Executor
    done: bool = False

    def run(self, execute: Execute) -> None:
        """Run the stages in order, each through `execute`.

        Raises:
            StageFailed: From the first stage that fails.
        """
        for stage in self.plan:
            if stage.action != "skip":
                execute(stage.name, partial(self.executor.run, stage.name))
        last = next(reversed(self.executor.outcomes.values()), None)
        if last is not None and last.stage in ("policy", "evaluation"):
            self.executor.tracker.result(last.summary)
        self.done = True
