"""A study's tables: means with their intervals, and differences from one cell."""

from collections.abc import Sequence

from pipelines.report import with_minus
from pipelines.studies.definition import Cell
from pipelines.studies.definition import Table as Wish
from pipelines.studies.page import Table
from pipelines.studies.values import Values
from rloo_core.evaluation.across_seeds import Contrast, holm, seed_interval

MISSING = "–"


def table(found: Values, wish: Wish) -> Table:
    """The table that a study wishes for."""
    cells = found.study.matching(wish.where)
    return _differences(found, wish, cells) if wish.against else _means(found, wish, cells)


def _means(found: Values, wish: Wish, cells: Sequence[Cell]) -> Table:
    axes = found.axes_of(cells)
    rows = [
        [*(cell[axis] for axis in axes), *(_mean(found, name, cell, cells) for name in wish.measures)] for cell in cells
    ]
    columns = [*_labels(found, axes), *(found.study.measures[name].label for name in wish.measures)]
    return Table(wish.caption, columns, rows, _note(found, wish, cells))


def _mean(found: Values, name: str, cell: Cell, cells: Sequence[Cell]) -> str:
    """Mean ± half of the 95 % interval, with the number of seeds where some are missing."""
    values = list(found.values(name, cell, cells).values())
    if found.is_censored(name, [cell]):
        return f"reached by {len(values)} of {len(list(found.of_cell(cell)))}"
    digits = found.study.measures[name].digits
    missing = f" (n = {len(values)})" if len(values) < found.study.seeds.count else ""
    if len(values) < 2:
        return f"{_number(values[0], digits)}{missing}" if values else MISSING
    interval = seed_interval(values)
    return f"{_number(interval.value, digits)} ± {interval.high - interval.value:.{digits}f}{missing}"


def _differences(found: Values, wish: Wish, cells: Sequence[Cell]) -> Table:
    """Each cell less the one it is compared with, paired by seed, corrected for all comparisons of the table."""
    axes = found.axes_of(cells)
    bases = [(cell, {**cell, **wish.against}) for cell in cells]
    compared = [(name, cell, base) for cell, base in bases if cell != base for name in wish.measures]
    contrasts = [found.paired(*each) for each in compared]
    there = [each.p for each in contrasts if each is not None]
    corrected = iter(holm(there))
    rows = []
    for (name, cell, _), each in zip(compared, contrasts, strict=True):
        measure = found.study.measures[name]
        tested = [MISSING] * 5 if each is None else _tested(each, next(corrected), measure.digits)
        rows.append([*(cell[axis] for axis in axes), measure.label, *tested])
    columns = [*_labels(found, axes), "measure", "difference", "95 %", "p, Holm", "effect", "seeds"]
    return Table(wish.caption, columns, rows, _about_differences(found, wish, len(there)))


def _about_differences(found: Values, wish: Wish, comparisons: int) -> str:
    base = found.name_of(wish.against, [axis for axis in found.study.axes if axis in wish.against])
    many = f"{comparisons} comparisons" if comparisons != 1 else "1 comparison"
    return (
        f"Less {base}, paired by seed; p corrected for the {many} of this table. "
        f"Effect: difference / standard deviation over seeds."
    )


def _tested(found: Contrast, corrected: float, digits: int) -> list[str]:
    return [
        _number(found.difference, digits, "+"),
        f"[{_number(found.low, digits, '+')}, {_number(found.high, digits, '+')}]",
        f"{corrected:.3f}" if corrected >= 0.001 else "< 0.001",
        MISSING if found.effect is None else _number(found.effect, 1, "+"),
        str(found.seeds),
    ]


def _number(value: float, digits: int, sign: str = "") -> str:
    return with_minus(f"{value:{sign}.{digits}f}")


def _note(found: Values, wish: Wish, cells: Sequence[Cell]) -> str:
    if not any(found.study.measures[name].is_common for name in wish.measures):
        return ""
    kls = [kl for kl in found.common(cells).values() if kl is not None]
    return (
        f"Matched KL: for each seed the largest that all rows reach, {min(kls):.2f} to {max(kls):.2f} nats."
        if kls
        else ""
    )


def _labels(found: Values, axes: Sequence[str]) -> list[str]:
    return [found.study.axes[axis].label for axis in axes]
