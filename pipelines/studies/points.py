"""The points of a study: each cell with each seed, as overrides; and what several of them need, to be made first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.digests import sha256_of_text
from pipelines.fingerprint import read_settings
from pipelines.studies.definition import Cell, Definition, one_experiment
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES

# A study's models are many and are compared, not used: pointers to the store are enough.
OF_A_STUDY = ("tracking.champion=false", "tracking.register_models=false", "tracking.log_models=false")


@dataclass(frozen=True)
class Point:
    """One pipeline run of a study.

    Args:
        name: Unique within the study, e.g. "method=rloo, kl_coef=0.1, seed=3".
        cell: Value's name of each axis.
        seed: The seed.
        overrides: What to run.
        settings: The same, composed and validated.
        until: The last stage.
    """

    name: str
    cell: Cell
    seed: int
    overrides: tuple[str, ...]
    settings: ExperimentSettings
    until: str

    @property
    def stages(self) -> list[str]:
        """The stages it runs, in order."""
        names = list(STAGES)
        return names[: names.index(self.until) + 1]

    def identity(self, stage: str) -> str:
        """Equal for points that need the same output of a stage: all settings that go into it."""
        return sha256_of_text(repr([read_settings(STAGES[name], self.settings) for name in _ancestry(stage)]))


def points_of(study: Definition, root: str) -> list[Point]:
    """Every cell with every seed: the first seed of all cells first, so that an early look shows all of them.

    Args:
        study: What to run.
        root: The run root.

    Raises:
        ConfigError: If the settings of a point are wrong; nothing has been started.
    """
    points: list[Point] = []
    problems: list[str] = []
    seeds = range(study.seeds.first, study.seeds.first + study.seeds.count)
    for seed in seeds:
        for cell in study.cells:
            name = ", ".join([*(f"{axis}={value}" for axis, value in cell.items()), f"seed={seed}"])
            overrides = _overrides(study, cell, seed, root)
            try:
                points.append(Point(name, cell, seed, overrides, load_settings(overrides), study.until))
            except ConfigError as error:
                problems += [
                    f"study {study.name}, {name.rpartition(', ')[0] or name}: {each}" for each in error.problems
                ]
        if problems:
            raise ConfigError(problems)
    return points


def shared(points: Sequence[Point]) -> list[dict[str, Point]]:
    """What more than one point needs, wave by wave: in each wave the outputs of one stage, by identity, each with the
    point whose settings make it. A later wave needs the earlier ones.
    """
    waves = []
    for stage in STAGES:
        makers: dict[str, list[Point]] = {}
        for point in points:
            if stage in point.stages[:-1]:
                makers.setdefault(point.identity(stage), []).append(point)
        needed = {identity: found[0] for identity, found in makers.items() if len(found) > 1}
        if needed:
            waves.append({f"{stage} {identity}": point for identity, point in needed.items()})
    return waves


def _overrides(study: Definition, cell: Mapping[str, str], seed: int, root: str) -> tuple[str, ...]:
    own = [override for axis, value in cell.items() for override in study.axes[axis].values[value]]
    varied = (
        [f"seed={seed}"]
        if study.seeds.vary == "everything"
        else [f"seed={study.seeds.first}", f"algorithm.seed={seed}", f"evaluation.seed={seed}"]
    )
    return tuple(one_experiment([*OF_A_STUDY, *study.base, *own, *varied, f"paths.root={root}"]))


def _ancestry(stage: str) -> list[str]:
    """A stage and all that it reads, directly or not, in order."""
    needed = {stage}
    for name in reversed(STAGES):
        if name in needed:
            needed |= set(STAGES[name].inputs)
    return [name for name in STAGES if name in needed]
