"""The stages of the pipeline: which there are, what each reads, and where its function is.

This module imports no heavy library, so that a plan can be made before torch is loaded.

A stage is a function `run(settings, inputs, out, observer) -> dict[str, float]`:

    settings  the stage's own `*StageSettings`
    inputs    directories of the stages it reads, by stage name
    out       an existing directory; everything the stage produces goes there. It may already hold the `checkpoints/`
              of a run that was killed, from which the stage goes on
    observer  receives metrics, tables, figures and progress

and returns its summary: numbers that describe the result.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rloo_core.observer import Observer
from rloo_core.settings import (
    DataStageSettings,
    EvaluationStageSettings,
    ExperimentSettings,
    PolicyStageSettings,
    RewardModelStageSettings,
    Settings,
    SftStageSettings,
)

StageFunction = Callable[[Settings, Mapping[str, Path], Path, Observer], dict[str, float]]


@dataclass(frozen=True)
class Stage:
    """One stage: its name, the stages whose outputs it reads, the sections of the settings it takes, its module."""

    name: str
    inputs: tuple[str, ...]
    settings_type: type[Settings]
    module: str

    def settings(self, experiment: ExperimentSettings) -> Settings:
        """The part of the experiment's settings that this stage takes."""
        sections = {name: getattr(experiment, name) for name in self.settings_type.model_fields}
        return self.settings_type.model_construct(**sections)

    def load(self) -> StageFunction:
        """Import the stage's module, and with it torch and transformers."""
        return cast(StageFunction, importlib.import_module(self.module).run)


STAGES: dict[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("data", (), DataStageSettings, "rloo_core.stages.data"),
        Stage("sft", ("data",), SftStageSettings, "rloo_core.stages.sft"),
        Stage("reward_model", ("data", "sft"), RewardModelStageSettings, "rloo_core.stages.reward_model"),
        Stage("policy", ("data", "sft", "reward_model"), PolicyStageSettings, "rloo_core.stages.policy"),
        Stage(
            "evaluation",
            ("data", "sft", "reward_model", "policy"),
            EvaluationStageSettings,
            "rloo_core.stages.evaluation",
        ),
    )
}
