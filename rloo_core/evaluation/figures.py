"""Pictures of a run: legible in print, told apart without colour."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # Okabe & Ito 2008, safe for colour-blind readers


def reward_and_kl(history: Sequence[Mapping[str, float]]) -> Figure:
    """Reward on top, KL to the reference below, over steps; held-out values as marks where there are any.

    Args:
        history: Metrics by step, each with its `step`.
    """
    figure = Figure(figsize=(7, 6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    _line(top, history, "reward/mean", BLUE, "reward, training prompts (less what cut-off completions pay)", alpha=0.55)
    _marks(top, history, "validation/proxy_reward", BLUE, "o", "proxy reward, held-out prompts")
    _marks(top, history, "validation/gold_reward", ORANGE, "s", "gold reward, held-out prompts (never trained on)")
    top.set_ylabel("reward")
    _line(bottom, history, "kl/mean", GREEN, "training prompts", alpha=0.55)
    _marks(bottom, history, "validation/kl", GREEN, "^", "held-out prompts")
    bottom.set_ylabel("KL to the reference, nats a completion")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=9)
    return figure


def _points(history: Sequence[Mapping[str, float]], name: str) -> tuple[list[float], list[float]]:
    rows = [row for row in history if name in row]
    return [row["step"] for row in rows], [row[name] for row in rows]


def _line(axes, history, name, color, label, alpha) -> None:  # type: ignore[no-untyped-def]
    steps, values = _points(history, name)
    if steps:
        axes.plot(steps, values, color=color, label=label, alpha=alpha, linewidth=1.2)


def _marks(axes, history, name, color, marker, label) -> None:  # type: ignore[no-untyped-def]
    steps, values = _points(history, name)
    if steps:
        axes.plot(steps, values, color=color, marker=marker, markersize=5, label=label, linewidth=1.6)
