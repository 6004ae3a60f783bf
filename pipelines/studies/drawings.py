"""A study's figures, from its wishes; those whose numbers are wanting are left out."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pipelines.studies.definition import Cell, FigureWish
from pipelines.studies.values import Values
from rloo_core.evaluation.figures.studies import Bar, Series, against_kl, bars, curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawing(found: Values, wish: FigureWish) -> "Figure | None":
    """The figure that a study wishes for; None if no point has its numbers."""
    cells = [cell for cell in found.study.matching(wish.where) if any(found.of_cell(cell))]
    draw: Mapping[str, Callable[[Values, FigureWish, Sequence[Cell]], Figure | None]] = {
        "curves": _curves,
        "axis": _along_axis,
        "against_kl": _against_kl,
        "bars": _bars,
    }
    return draw[wish.kind](found, wish, cells) if cells else None


def _curves(found: Values, wish: FigureWish, cells: Sequence[Cell]) -> "Figure | None":
    """A metric over the training, one line a cell."""
    axes = found.axes_of(cells)
    series = []
    for cell in cells:
        every = [each for each in (result.measured(wish.y[0], wish.x) for result in found.of_cell(cell)) if each[0]]
        if every:
            xs = every[0][0]
            series.append(Series(found.name_of(cell, axes), xs, [values for own, values in every if own == xs]))
    return curves(series, wish.x, wish.label or wish.y[0], wish.log_x) if series else None


def _along_axis(found: Values, wish: FigureWish, cells: Sequence[Cell]) -> "Figure | None":
    """A measure along an axis of the study, one line for each combination of the others."""
    axis, label = found.study.axes[wish.x], _label(found, wish)
    places_of = axis.at or {name: float(place) for place, name in enumerate(axis.values)}
    names = {} if axis.at else {places_of[cell[wish.x]]: cell[wish.x] for cell in cells}
    others = [name for name in found.axes_of(cells) if name != wish.x]
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        lines.setdefault(found.name_of(cell, others) or label, []).append(cell)
    series = []
    for name, line in lines.items():
        places = [places_of[cell[wish.x]] for cell in line]
        values = [found.values(wish.y[0], cell, cells) for cell in line]
        seeds = [seed for seed in found.seeds if all(seed in each for each in values)]
        if seeds:
            series.append(Series(name, places, [[each[seed] for each in values] for seed in seeds]))
    return curves(series, axis.label, label, wish.log_x, names) if series else None


def _against_kl(found: Values, wish: FigureWish, cells: Sequence[Cell]) -> "Figure | None":
    """Metrics against KL over the training, one panel a metric, one line a cell."""
    axes = found.axes_of(cells)
    panels: dict[str, dict[str, list[list[tuple[float, float]]]]] = {}
    for metric in wish.y:
        panel = panels.setdefault(metric.removeprefix("validation/").replace("_", " "), {})
        for cell in cells:
            trajectories = (result.trajectory(metric) for result in found.of_cell(cell))
            panel[found.name_of(cell, axes)] = [each for each in trajectories if each]
    return against_kl(panels) if any(any(panel.values()) for panel in panels.values()) else None


def _bars(found: Values, wish: FigureWish, cells: Sequence[Cell]) -> "Figure | None":
    """A measure, one bar a cell: grouped by the first axis, told apart by the others."""
    axes = found.axes_of(cells)
    rows = [
        Bar(found.name_of(cell, axes[:1]), list(found.values(wish.y[0], cell, cells).values()),
            found.name_of(cell, axes[1:]))
        for cell in cells
    ]  # fmt: skip
    return bars(rows, _label(found, wish)) if any(row.seeds for row in rows) else None


def _label(found: Values, wish: FigureWish) -> str:
    return wish.label or found.study.measures[wish.y[0]].label
