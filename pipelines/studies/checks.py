"""What a study must not say: names that mean nothing, and settings that would have no effect. Before any compute."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from pipelines.config_errors import ConfigError, listed, nearest
from pipelines.config_overrides import key_of
from pipelines.studies.definition import Cell, Definition, FigureWish
from pipelines.studies.metric_names import unknown_metric

SEED_KEYS = {"seed", "sft.seed", "reward_model.seed", "algorithm.seed", "evaluation.seed"}
CURVES_RUN_OVER = ("step", "completions")
MOST_POINTS = 10_000  # some hundred are a large study; more can only be a slip


def checked(study: Definition, axes: Mapping[str, Collection[str]], typed: Sequence[str]) -> Definition:
    """The study without what its profile has no values for.

    Args:
        study: Sized by a profile.
        axes: Names of each axis' values in all of its profiles.
        typed: Overrides that a person typed for every point.

    Raises:
        ConfigError: With every problem.
    """
    problems = [problem for place, cell in _cells(study) for problem in _wrong_cell(place, cell, axes)]
    problems += [*_too_many(study), *_wrong_names(study), *_wrong_metrics(study), *_without_effect(study, typed)]
    for place, figure in enumerate(study.figures):
        problems += [f"figures.{place}.{problem}" for problem in _wrong_figure(study, figure, axes)]
    if problems:
        raise ConfigError(problems)
    return _without_missing_cells(study)


def _cells(study: Definition) -> Iterator[tuple[str, Cell]]:
    for i, table in enumerate(study.tables):
        yield f"tables.{i}.where", table.where
        yield f"tables.{i}.against", table.against
    for i, figure in enumerate(study.figures):
        yield f"figures.{i}.where", figure.where
    for i, claim in enumerate(study.claims):
        for term in claim.contrast:
            yield f"claims.{i}.contrast", term.cell


def _wrong_cell(place: str, cell: Cell, axes: Mapping[str, Collection[str]]) -> Iterator[str]:
    for axis, value in cell.items():
        if axis not in axes:
            yield f"{place}: {_no_axis(axis, axes)}"
        elif value not in axes[axis]:
            yield f"{place}: {axis} has no value {value}; it has {listed(axes[axis], 'and')}"


def _no_axis(axis: str, axes: Mapping[str, object]) -> str:
    there = f"the axes are {listed(axes, 'and')}" if axes else "the study has none"
    return f"there is no axis {axis}; {there}"


def _too_many(study: Definition) -> Iterator[str]:
    cells = math.prod(len(axis.values) for axis in study.axes.values())
    if cells * study.seeds.count > MOST_POINTS:
        yield f"{cells} cells with {study.seeds.count} seeds are more than {MOST_POINTS} points; take fewer of either"


def _wrong_names(study: Definition) -> Iterator[str]:
    """Measures that are not there, or that no point will have; axes that are not of numbers; names for two things."""
    for name in study.axes:
        if name == "seed" or name in study.measures:
            other = "every point's seed" if name == "seed" else "a measure"
            yield f"axes.{name}: tables have a column of that name already, for {other}; give the axis another name"
    used = [(f"tables.{i}", name) for i, table in enumerate(study.tables) for name in table.measures]
    used += [(f"claims.{i}", claim.measure) for i, claim in enumerate(study.claims)]
    used += [(f"figures.{i}", y) for i, f in enumerate(study.figures) if f.kind in ("axis", "bars") for y in f.y]
    for place, name in used:
        if name not in study.measures:
            yield f"{place}: there is no measure {name}{nearest(name, study.measures)}"
    for name, measure in study.measures.items():
        if measure.take is None and measure.of.startswith("evaluation/") and study.until != "evaluation":
            yield f"measures.{name}.of: {measure.of}, but the study ends with {study.until}; leave out `until`"
        if measure.share_of and not (measure.share_of in study.axes and study.axes[measure.share_of].at):
            yield f"measures.{name}.share_of: {measure.share_of} is no axis of numbers"


def _wrong_metrics(study: Definition) -> Iterator[str]:
    """Metrics that no run measures, of measures and of figures."""
    for name, measure in study.measures.items():
        if problem := unknown_metric(measure.of, of_curve=measure.take is not None):
            yield f"measures.{name}.of: {problem}"
    for place, figure in enumerate(study.figures):
        for metric in figure.y if figure.kind in ("curves", "against_kl") else ():
            if problem := unknown_metric(metric, of_curve=True):
                yield f"figures.{place}.y: {problem}"


def _wrong_figure(study: Definition, figure: FigureWish, axes: Mapping[str, object]) -> Iterator[str]:
    if figure.kind != "against_kl" and len(figure.y) > 1:
        yield f"y: {', '.join(figure.y)}, but {figure.kind} shows one; add a figure for each"
    if figure.kind == "curves" and figure.x not in CURVES_RUN_OVER:
        yield f"x: {figure.x}, but curves run over {listed(CURVES_RUN_OVER)}"
    if figure.kind == "axis" and figure.x not in axes:
        yield f"x: {_no_axis(figure.x, axes)}"
    elif figure.kind == "axis" and figure.log_x and figure.x in study.axes:
        numbers = study.axes[figure.x].at
        if not numbers or min(numbers.values()) <= 0:
            yield f"log_x: {figure.x} must then have numbers above 0"


def _without_effect(study: Definition, typed: Sequence[str]) -> Iterator[str]:
    """Settings of every point that the study's seeds or axes replace at every point."""
    of_axes = [text for axis in study.axes.values() for texts in axis.values.values() for text in texts]
    for key, text in {key_of(text): text for text in [*of_axes, *study.base]}.items():
        if key in SEED_KEYS:
            yield f"{text}: a study sets the seeds of its points; say how many with --seeds, or `seeds` of its file"
        if key == "paths.root":
            yield f"{text}: all points share one run root; type it behind the study: rloo study {study.file} {text}"
    for (first, one), (second, other) in combinations(study.axes.items(), 2):
        for key in sorted(one.fixes & other.fixes):
            yield f"axes: {first} and {second} both set {key}, so one of them would have no effect"
    for text in typed:
        for name, axis in study.axes.items():
            if key_of(text) in axis.fixes:
                yield (
                    f"{text}: {key_of(text)} is set by the axis {name} ({listed(axis.values, 'and')}), so it would "
                    f"have no effect; leave it out, or change the axis in a file of your own"
                )


def _without_missing_cells(study: Definition) -> Definition:
    """A profile with fewer values leaves out the claims, tables and figures that name the others."""
    axes = {name: axis.values for name, axis in study.axes.items()}

    def there(*cells: Cell) -> bool:
        return not any(problem for cell in cells for problem in _wrong_cell("", cell, axes))

    claims = (each for each in study.claims if there(*(term.cell for term in each.contrast)))
    tables = (each for each in study.tables if there(each.where, each.against))
    figures = (each for each in study.figures if there(each.where) and (each.kind != "axis" or each.x in axes))
    return study.model_copy(update={"claims": tuple(claims), "tables": tuple(tables), "figures": tuple(figures)})
