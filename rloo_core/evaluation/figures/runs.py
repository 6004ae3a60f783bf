"""Pictures of a run, the same for MLflow and the report."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rloo_core.evaluation.figure_rows import EQUAL_LENGTH, NAMES, Row, histogram_edges, length_label, win_rate_rows
from rloo_core.evaluation.figures.style import BLUE, GREEN, ORANGE, WIDTH, tidied

STYLES = {"sft": (BLUE, "--", "o"), "policy": (ORANGE, "-", "s")}

History = Sequence[Mapping[str, float]]


def reward_and_kl(history: History) -> Figure:
    """Reward on top, KL to the reference below, over steps; held-out values as marks where there are any.

    Args:
        history: Metrics by step, each with its `step`.
    """
    figure = Figure(figsize=(WIDTH, 4.8), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    _line(top, history, "reward/mean", BLUE, "training prompts", alpha=0.55)
    _marks(top, history, "validation/proxy_reward", BLUE, "o", "proxy reward, held-out prompts")
    _marks(top, history, "validation/gold_reward", ORANGE, "s", "gold reward, held-out prompts")
    top.set_ylabel("reward")
    _line(bottom, history, "kl/mean", GREEN, "training prompts", alpha=0.55)
    _marks(bottom, history, "validation/kl", GREEN, "^", "held-out prompts")
    bottom.set_ylabel("KL to the reference, nats")
    bottom.set_xlabel("step")
    return tidied(figure)


def reward_against_kl(history: History) -> Figure | None:
    """What was paid in KL for what was gained in reward, on held-out prompts, from the first evaluation to the last.

    Args:
        history: Metrics by step, with `validation/kl` and the validation rewards.

    Returns:
        None where there are fewer than two evaluations.
    """
    rows = [row for row in history if "validation/kl" in row]
    if len(rows) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    kinds = (
        ("proxy_reward", BLUE, "o", "proxy reward"),
        ("gold_reward", ORANGE, "s", "gold reward"),
    )
    for name, color, marker, label in kinds:
        points = [(row["validation/kl"], row[f"validation/{name}"]) for row in rows if f"validation/{name}" in row]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=color, marker=marker, markersize=5, linewidth=1.2, label=label)
            last = f"step {rows[-1]['step']:.0f}"
            axes.annotate(last, (x[-1], y[-1]), (4, 4), textcoords="offset points", fontsize=8)
    axes.set_xlabel("KL to the reference, nats a completion")
    axes.set_ylabel("reward")
    return tidied(figure)


def win_rates(rows: Sequence[Row]) -> Figure:
    """Bars with 95 % intervals, and a line where both would be equally good.

    Args:
        rows: See `win_rate_rows`.
    """
    figure = Figure(figsize=(WIDTH, 0.7 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    values = np.array([row["value"] for row in rows])
    errors = np.array([[row["value"] - row["low"], row["high"] - row["value"]] for row in rows]).clip(0).T
    colors = [BLUE if row["label"].startswith("SFT") else ORANGE for row in rows]
    hatches = ["///" if row["label"].endswith(EQUAL_LENGTH) else "" for row in rows]
    axes.barh(places, values, height=0.62, color=colors, alpha=0.55, hatch=hatches, edgecolor="white", linewidth=0)
    axes.errorbar(values, places, xerr=errors, fmt="none", ecolor="black", elinewidth=1.1, capsize=2.5)
    axes.axvline(50, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [_short(row["label"]) for row in rows], fontsize=8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("win rate, % (ties one half)")
    return tidied(figure)


def _short(label: str) -> str:
    """A bar's label; the one above says whose win rate at equal length it is."""
    return "at equal length" if label.endswith(EQUAL_LENGTH) else label


def distributions(rows: Sequence[Row], measure: str, label: str, mode: str = "sampled") -> Figure:
    """How a measure spreads over the test prompts, SFT and policy.

    Args:
        rows: Rows of `completions.jsonl`.
        measure: E.g. "length" or "proxy_reward".
        label: Of the axis.
        mode: Which completions.
    """
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.subplots()
    columns = {name: [row[f"{name}_{mode}_{measure}"] for row in rows] for name in STYLES}
    edges = histogram_edges([value for column in columns.values() for value in column])
    for name, column in columns.items():
        color, line, _ = STYLES[name]
        axes.hist(column, bins=edges, histtype="step", color=color, linestyle=line, linewidth=1.6, label=NAMES[name])
    axes.set_xlabel(label)
    axes.set_ylabel("prompts")
    return tidied(figure)


def calibration(curve: Sequence[Row]) -> Figure:
    """Reliability of the reward model: how often it is right when it is so sure.

    Args:
        curve: Rows of confidence, accuracy and share.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([0.5, 1.0], [0.5, 1.0], color="black", linewidth=0.8, linestyle=":", label="perfectly calibrated")
    confidence, accuracy = ([row[name] for row in curve] for name in ("confidence", "accuracy"))
    sizes = [20 + 400 * row["share"] for row in curve]
    axes.plot(confidence, accuracy, color=BLUE, linewidth=1.2)
    axes.scatter(confidence, accuracy, s=sizes, color=BLUE, alpha=0.55, linewidths=0)
    axes.set_xlabel("confidence of the reward model (area: share of pairs)")
    axes.set_ylabel("share ranked as people did")
    return tidied(figure)


def by_length(details: Mapping[str, Sequence[Row]]) -> Figure:
    """Win rates of comparisons by how the lengths differ.

    Args:
        details: Bins (`low`, `high`, `compared`, `win_rate…`) by the comparison's label.
    """
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    names: list[str] = []
    for shift, ((label, bins), color, marker) in enumerate(
        zip(details.items(), (BLUE, ORANGE, GREEN), "os^", strict=False)
    ):
        names = [length_label(row) for row in bins]
        kept = [(i, row) for i, row in enumerate(bins) if "win_rate" in row]
        places = [i + 0.12 * (shift - 1) for i, _ in kept]
        values = np.array([100 * row["win_rate"] for _, row in kept])
        ends = np.array([[100 * row["win_rate_low"], 100 * row["win_rate_high"]] for _, row in kept]).reshape(-1, 2)
        errors = np.abs(ends.T - values)
        axes.errorbar(places, values, yerr=errors, fmt=marker, color=color, capsize=2.5, label=label, markersize=5)
    axes.axhline(50, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(names)), names, fontsize=7.5)
    axes.set_xlabel("length, relative to the other completion's")
    axes.set_ylabel("win rate, %")
    axes.set_ylim(0, 100)
    return tidied(figure)


def evaluation_figures(summary: Mapping[str, float], rows: Sequence[Row], curve: Sequence[Row]) -> dict[str, Figure]:
    """The figures of an evaluation, by name; those that lack their numbers are absent."""
    rates = win_rate_rows(summary)
    figures = {
        "length": distributions(rows, "length", "length, tokens"),
        "proxy_reward": distributions(rows, "proxy_reward", "reward"),
    }
    if any("sft_sampled_gold_reward" in row for row in rows):
        figures["gold_reward"] = distributions(rows, "gold_reward", "gold reward")
    return (
        figures
        | ({"win_rates": win_rates(rates)} if rates else {})
        | ({"calibration": calibration(curve)} if curve else {})
    )


def _points(history: History, name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in history if name in row]
    return [row["step"] for row in rows], [row[name] for row in rows]


def _line(axes: Axes, history: History, name: str, color: str, label: str, alpha: float) -> None:
    steps, values = _points(history, name)
    if steps:
        axes.plot(steps, values, color=color, label=label, alpha=alpha, linewidth=1.2)


def _marks(axes: Axes, history: History, name: str, color: str, marker: str, label: str) -> None:
    steps, values = _points(history, name)
    if steps:
        axes.plot(steps, values, color=color, marker=marker, markersize=5, label=label, linewidth=1.6)
