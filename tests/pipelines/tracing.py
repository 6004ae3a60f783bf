"""Which settings a stage reads, seen while it runs: nothing is declared, so nothing can be forgotten."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rloo_core.observer import SilentObserver
from rloo_core.settings import ExperimentSettings, Settings
from rloo_core.stages import STAGES

# The whole pipeline in a few seconds: nothing is learned, every line is passed.
MICRO = [
    "experiment=tiny", "data.synthetic.prompts=8", "data.synthetic.demonstrations=16", "data.synthetic.preferences=16",
    "data.synthetic.validation=4", "data.synthetic.test=4", "model.scratch.hidden_size=16", "model.scratch.layers=1",
    "model.scratch.intermediate_size=16", "sft.batch_size=8", "sft.epochs=1.0", "reward_model.batch_size=8",
    "algorithm.steps=2", "algorithm.rollout_batch_size=4", "algorithm.group_size=2", "algorithm.eval_prompts=4",
    "algorithm.max_new_tokens=4", "algorithm.checkpoint_every=1", "evaluation.samples=1",
]  # fmt: skip


@contextmanager
def traced(settings: Settings) -> Iterator[set[str]]:
    """Dotted names of the settings that are read within the block."""
    names = {identity: name for name, identity in _sections(settings, "")}
    read: set[str] = set()
    plain = Settings.__getattribute__

    def reading(self: Settings, name: str) -> Any:
        value = plain(self, name)
        prefix = names.get(id(self))
        if prefix is not None and name in type(self).model_fields and not isinstance(value, Settings):
            read.add(f"{prefix}{name}")
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "__getattribute__", reading)
        yield read


def _sections(settings: Settings, prefix: str) -> Iterator[tuple[str, int]]:
    yield prefix, id(settings)
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _sections(value, f"{prefix}{name}.")


def reads(settings: ExperimentSettings, root: Path) -> dict[str, set[str]]:
    """Run every stage, and tell what each has read."""
    found: dict[str, set[str]] = {}
    for name, stage in STAGES.items():
        inputs: Mapping[str, Path] = {each: root / each for each in stage.inputs}
        (root / name).mkdir(parents=True)
        own = stage.settings(settings)
        function = stage.load()
        with traced(own) as read:
            function(own, inputs, root / name, SilentObserver())
        found[name] = read
    return found
