"""The points of a study: each cell with each seed, as overrides; and what several of them need, to be made first."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.config import load_settings_each
from pipelines.config_errors import ConfigError
from pipelines.config_overrides import last_of_each
from pipelines.digests import sha256_of_text
from pipelines.fingerprint import read_settings
from pipelines.plan import Selection, make_plan
from pipelines.store import Store
from pipelines.studies.definition import Cell, Definition, Seeds
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES

# A study's models are many and are compared, not used: pointers to the store are enough.
OF_A_STUDY = ("tracking.register_models=false", "tracking.log_models=false")
ALWAYS = "tracking.champion=false"  # whatever a study or a person says: one of many that were tried is no champion


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
        ConfigError: If the settings of a point are wrong, or two cells have the same; nothing has been started.
    """
    cells: list[list[Point]] = []
    problems: dict[str, list[str]] = {}
    for cell in study.cells:
        try:
            cells.append(_points_of_cell(study, cell, root))
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(_name(cell))
    if problems:
        raise ConfigError([_told(study, problem, names) for problem, names in problems.items()])
    _refuse_equal_cells(study, [points[0] for points in cells])
    return [point for points in zip(*cells, strict=True) for point in points]


def _refuse_equal_cells(study: Definition, firsts: Sequence[Point]) -> None:
    """Two cells with the same settings are one: computed once, shown twice, and no different by any test."""
    names: dict[str, str] = {}
    problems = []
    for point in firsts:
        name = _name(point.cell)
        other = names.setdefault(repr(point.settings), name)
        if other != name:
            problems.append(f"study {study.file}: {other} and {name} have the same settings; leave one of them out")
    if problems:
        raise ConfigError(problems)


def _points_of_cell(study: Definition, cell: Cell, root: str) -> list[Point]:
    """A cell's points: composed once, since only seeds differ."""
    seeds = {seed: _seeds(study.seeds, seed) for seed in study.seeds.all}
    common = _overrides(study, cell, root)
    settings = load_settings_each(common, list(seeds.values()))
    typed = [(*common, *(f"{key}={value}" for key, value in each.items())) for each in seeds.values()]
    return [
        Point(point_name(cell, seed), cell, seed, overrides, each, study.until)
        for seed, overrides, each in zip(seeds, typed, settings, strict=True)
    ]


def point_name(cell: Cell, seed: int) -> str:
    """What a point is called: unique within its study."""
    name = _name(cell)
    return f"{name}, seed={seed}" if name else f"seed={seed}"


def _name(cell: Cell) -> str:
    return ", ".join(f"{axis}={value}" for axis, value in cell.items())


def _told(study: Definition, problem: str, names: Sequence[str]) -> str:
    """A problem with the cells that have it, where not all do."""
    where = "" if len(names) == len(study.cells) else f", {names[0]}"
    more = f" ({len(names) - 1} more such points)" if where and len(names) > 1 else ""
    return f"study {study.file}{where}: {problem}{more}"


def finished(point: Point, store: Store, until: str) -> dict[str, str] | None:
    """Fingerprints of a point's stages up to one, if all of them are in the store."""
    plan = make_plan(point.settings, store, Selection(until=until), point.overrides)
    wanted = [stage for stage in plan if stage.action != "skip"]
    found = {stage.name: stage.fingerprint for stage in wanted if stage.action == "reuse" and stage.fingerprint}
    return found if len(found) == len(wanted) else None


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


def _overrides(study: Definition, cell: Cell, root: str) -> list[str]:
    """All of a point's overrides but its seeds."""
    own = [override for axis, value in cell.items() for override in study.axes[axis].values[value]]
    return last_of_each([*OF_A_STUDY, *study.base, *own, ALWAYS, f"paths.root={root}"])


def _seeds(seeds: Seeds, seed: int) -> dict[str, int]:
    if seeds.vary == "everything":
        return {"seed": seed}
    varied = (
        ["reward_model", "algorithm", "evaluation"] if seeds.vary == "reward_model" else ["algorithm", "evaluation"]
    )
    fixed = seeds.first if seeds.fixed is None else seeds.fixed
    return {"seed": fixed, **{f"{section}.seed": seed for section in varied}}


def _ancestry(stage: str) -> list[str]:
    """A stage and all that it reads, directly or not, in order."""
    needed = {stage}
    for name in reversed(STAGES):
        if name in needed:
            needed |= set(STAGES[name].inputs)
    return [name for name in STAGES if name in needed]
