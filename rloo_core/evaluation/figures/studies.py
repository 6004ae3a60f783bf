"""Pictures of a study, in the paper's form: curves with bands, reward against KL, bars, claims with their intervals.

Intervals are 95 % t intervals over seeds; with one seed there are none. Curves of two seeds show the seeds instead:
their interval is thirteen standard errors wide to each side, and would hide all other curves.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from rloo_core.evaluation.across_seeds import Verdict, seed_interval
from rloo_core.evaluation.figures.looks import BLACK, GREY, Look, legend_below, limit, look
from rloo_core.evaluation.figures.style import BLUE, GREEN, ORANGE, WIDTH, tidied

FEW = 12  # places: up to here each has its mark
TICKS = 8  # places: up to here each has its tick
NAMES_WIDTH = 70  # characters that fit below an axis
VERDICTS: Mapping[Verdict, tuple[str, str, str]] = {  # colour, marker, fill
    "supported": (GREEN, "o", GREEN),
    "not supported": (ORANGE, "X", ORANGE),
    "undecided": (BLUE, "s", "white"),
}

Points = Sequence[tuple[float, float]]  # a seed's (KL, value) at each measurement, in the order of training


@dataclass(frozen=True)
class Series:
    """One curve a seed over the same places; a curve that is shorter than others cuts them all to its length."""

    label: str
    x: Sequence[float]
    seeds: Sequence[Sequence[float]]

    def cut(self) -> tuple[list[float], list[list[float]]]:
        """Places, and the values of each seed, to the shortest length."""
        length = min([len(self.x), *map(len, self.seeds)]) if self.seeds else 0
        return list(self.x[:length]), [list(seed[:length]) for seed in self.seeds]


@dataclass(frozen=True)
class Bar:
    """A bar: the mean of its seeds. Bars of one label stand together and differ by `series`."""

    label: str
    seeds: Sequence[float]
    series: str = ""


@dataclass(frozen=True)
class ForestRow:
    """A claim's difference, its interval (None: one seed), the margin within which it would not matter, its verdict."""

    text: str
    difference: float
    low: float | None
    high: float | None
    margin: float
    verdict: Verdict


def curves(
    series: Sequence[Series], x_label: str, y_label: str, log_x: bool = False, names: Mapping[float, str] | None = None
) -> Figure:
    """Means over seeds with their bands: over steps, completions, σ, K or λ (Figures 2 to 4 of the paper).

    Args:
        series: What is compared; those without values are left out.
        x_label: With its unit.
        y_label: With its unit.
        log_x: A logarithmic axis; places at 0 or below are shown on a linear piece at its start.
        names: Of the places, where they are no numbers; the axis is linear then.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    values: list[float] = []
    ends: list[float] = []
    for place, one in enumerate(series):
        x, seeds = one.cut()
        if x:
            values += [value for seed in seeds for value in seed]
            ends += _curve(axes, x, seeds, look(place), one.label, offset=place / max(1, len(series)))
    if names:
        _named_axis(axes, names)
    else:
        _x_axis(axes, sorted({x for one in series for x in one.cut()[0]}), log_x)
    if values:
        limit(axes, values, ends)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return _finished(figure, axes)


def against_kl(panels: Mapping[str, Mapping[str, Sequence[Points]]], budget: float | None = None) -> Figure:
    """What was paid in KL for reward: one panel a reward, above each other on the same KL axis.

    Over-optimisation is a curve that turns down in the gold panel while it rises in the proxy panel. A mark is the
    mean over seeds of KL and of reward at one measurement; thin lines are the seeds.

    Args:
        panels: At least one, by the label of the vertical axis ("proxy reward", "gold reward"): each series' seeds.
        budget: KL at which series are compared, as a vertical line.
    """
    figure = Figure(figsize=(WIDTH, 0.7 + 2.1 * len(panels)), layout="constrained")
    column: list[Axes] = list(figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0])
    labels = list(dict.fromkeys(label for panel in panels.values() for label in panel))
    for axes, (y_label, panel) in zip(column, panels.items(), strict=True):
        for label, seeds in panel.items():
            _trajectories(axes, seeds, look(labels.index(label)), label)
        if budget is not None:
            axes.axvline(budget, color=BLACK, linewidth=0.8, linestyle=":")
            if axes is column[0]:
                axes.annotate(
                    f"{budget:.3g} nats", (budget, 1.0), (3, -9), xycoords=("data", "axes fraction"),
                    textcoords="offset points", fontsize=7.5,
                )  # fmt: skip
        axes.set_ylabel(y_label)
    column[-1].set_xlabel("KL to the reference, nats a completion")
    fullest = max(range(len(column)), key=lambda i: len(column[i].get_legend_handles_labels()[1]))
    return _finished(figure, column[fullest])


def bars(rows: Sequence[Bar], value_label: str) -> Figure:
    """Means with their intervals, grouped by label; each seed is a dot.

    Args:
        rows: In the order in which they are shown; those without seeds are left out.
        value_label: Of the axis of values, with its unit.
    """
    shown = [row for row in rows if row.seeds]
    groups = list(dict.fromkeys(row.label for row in shown))
    kinds = list(dict.fromkeys(row.series for row in shown))
    figure = Figure(figsize=(WIDTH, 0.8 + len(groups) * (0.12 + 0.21 * len(kinds))), layout="constrained")
    axes = figure.subplots()
    height = 0.84 / max(1, len(kinds))
    named: set[str] = set()
    ends = [0.0]
    for row in shown:
        kind = kinds.index(row.series)
        middle = groups.index(row.label) + (kind - (len(kinds) - 1) / 2) * height
        label = row.series if row.series and row.series not in named else None
        named.add(row.series)
        ends += _bar(axes, row.seeds, middle, height, look(kind), label)
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(range(len(groups)), [textwrap.fill(name, 22) for name in groups], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(value_label)
    if shown:
        limit(axes, [0.0, *(value for row in shown for value in row.seeds)], ends, along="x")
    return _finished(figure, axes)


def forest(rows: Sequence[ForestRow], x_label: str = "difference") -> Figure:
    """Differences with intervals, zero, the margin as a grey block; the mark's shape, fill and colour say the verdict.

    Args:
        rows: Claims of one unit; each claim's words stand above its interval.
        x_label: Of the difference, with its unit.
    """
    texts = [textwrap.fill(row.text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"), 62) for row in rows]
    heights = [0.24 + 0.15 * (text.count("\n") + 1) for text in texts]  # inches
    figure = Figure(figsize=(WIDTH, 0.75 + sum(heights)), layout="constrained")
    axes = figure.subplots()
    below = 0.0
    for row, text, height in zip(rows, texts, heights, strict=True):
        middle = below + height - 0.12
        _claim(axes, row, middle)
        axes.text(0.0, below + 0.02, text, transform=axes.get_yaxis_transform(), fontsize=8, va="top", linespacing=1.15)
        below += height
    for verdict, (color, marker, fill) in VERDICTS.items():
        axes.plot([], [], color=color, marker=marker, markerfacecolor=fill, linestyle="", label=verdict)
    axes.add_patch(Rectangle((0, 0), 0, 0, color=GREY, alpha=0.25, linewidth=0, label="margin"))
    axes.set_ylim(below or 1.0, 0)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(x_label)
    finished = _finished(figure, axes)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    return finished


def _curve(
    axes: Axes, x: list[float], seeds: list[list[float]], drawn_as: Look, label: str, offset: float
) -> list[float]:
    """Draw one series; returns the ends of its band."""
    every = 1 if len(x) <= FEW else max(1, len(x) // 7)
    axes.plot(
        x, np.mean(seeds, axis=0), color=drawn_as.color, linestyle=drawn_as.line, marker=drawn_as.marker,
        markevery=(int(offset * every), every), markersize=4.5, linewidth=1.5, label=label,
    )  # fmt: skip
    if len(seeds) < 3:
        for seed in seeds if len(seeds) > 1 else []:
            axes.plot(x, seed, color=drawn_as.color, linewidth=0.6, alpha=0.35)
        return []
    intervals = [seed_interval(column) for column in zip(*seeds, strict=True)]
    low, high = [end.low for end in intervals], [end.high for end in intervals]
    axes.fill_between(x, low, high, color=drawn_as.color, alpha=0.13, linewidth=0)
    if len(x) == 1:  # a band without width
        axes.vlines(x, low, high, color=drawn_as.color, linewidth=1.0)
    return low + high


def _x_axis(axes: Axes, places: list[float], log_x: bool) -> None:
    positive = [x for x in places if x > 0]
    if log_x and positive:
        if len(positive) < len(places):
            axes.set_xscale("symlog", linthresh=positive[0])
        else:
            axes.set_xscale("log", base=2)
    narrowest = min(np.diff(places), default=0.0)
    if 1 < len(places) <= TICKS and (log_x or narrowest >= 0.07 * (places[-1] - places[0])):
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.set_xticks([], minor=True)
    elif not log_x:
        axes.xaxis.set_major_locator(MaxNLocator(6))


def _named_axis(axes: Axes, names: Mapping[float, str]) -> None:
    width = max(8, NAMES_WIDTH // len(names))
    axes.set_xticks(list(names), [textwrap.fill(name, width) for name in names.values()])
    axes.set_xlim(min(names) - 0.5, max(names) + 0.5)


def _trajectories(axes: Axes, seeds: Sequence[Points], drawn_as: Look, label: str) -> None:
    kept = [seed for seed in seeds if seed]
    if not kept:
        return
    for seed in kept if len(kept) > 1 else []:
        axes.plot(*zip(*seed, strict=True), color=drawn_as.color, linewidth=0.6, alpha=0.35)
    length = min(map(len, kept))
    means = np.mean([seed[:length] for seed in kept], axis=0)
    every = max(1, length // FEW)
    axes.plot(
        means[:, 0], means[:, 1], color=drawn_as.color, linestyle=drawn_as.line, marker=drawn_as.marker,
        markersize=4.5, linewidth=1.5, markevery=every, label=label,
    )  # fmt: skip


def _bar(
    axes: Axes, seeds: Sequence[float], middle: float, height: float, drawn_as: Look, label: str | None
) -> list[float]:
    """Draw one bar; returns the ends of its interval."""
    mean = float(np.mean(seeds))
    axes.barh(
        middle, mean, height=0.9 * height, color=drawn_as.color, alpha=0.5, hatch=drawn_as.hatch, edgecolor="white",
        linewidth=0, label=label,
    )  # fmt: skip
    axes.scatter(seeds, [middle] * len(seeds), s=9, facecolors="white", edgecolors=BLACK, linewidths=0.7, zorder=3)
    if len(seeds) < 2:
        return []
    _, low, high = seed_interval(seeds)
    _interval(axes, mean, low, high, middle, BLACK)
    return [low, high]


def _claim(axes: Axes, row: ForestRow, middle: float) -> None:
    color, marker, fill = VERDICTS[row.verdict]
    axes.add_patch(Rectangle((-row.margin, middle - 0.09), 2 * row.margin, 0.18, color=GREY, alpha=0.25, linewidth=0))
    axes.vlines(0, middle - 0.12, middle + 0.12, color=BLACK, linewidth=0.8, zorder=0.5)
    if row.low is not None and row.high is not None:
        _interval(axes, row.difference, row.low, row.high, middle, color)
    axes.plot([row.difference], [middle], color=color, marker=marker, markerfacecolor=fill, markersize=6.5)


def _interval(axes: Axes, value: float, low: float, high: float, middle: float, color: str) -> ErrorbarContainer:
    ends = np.array([[value - low], [high - value]]).clip(0)
    return axes.errorbar(value, middle, xerr=ends, fmt="none", ecolor=color, elinewidth=1.2, capsize=2.5)


def _finished(figure: Figure, axes: Axes) -> Figure:
    """Tidied, with one legend below instead of one in each of the axes."""
    tidied(figure)
    legend_below(figure, axes)
    for one in figure.axes:
        if legend := one.get_legend():
            legend.remove()
    return figure
