"""How several series are told apart in print, by colour-blind readers and on a phone; and how a figure is written."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rloo_core.evaluation.figures.style import BLUE, GREEN, ORANGE

PURPLE, SKY, GOLD = "#CC79A7", "#56B4E9", "#E69F00"  # Okabe & Ito 2008; their yellow is lost on white, grey stands in
BLACK, GREY = "#000000", "#777777"
DPI = 200  # of PNG


class Look(NamedTuple):
    """How one series is drawn: colour, marker, line and hatch each tell it from the others."""

    color: str
    marker: str
    line: str | tuple[int, tuple[float, ...]]
    hatch: str


LOOKS = (
    Look(BLUE, "o", "-", ""),
    Look(ORANGE, "s", "--", "///"),
    Look(GREEN, "^", "-.", "..."),
    Look(PURPLE, "D", ":", "xxx"),
    Look(BLACK, "v", (0, (7, 2)), "---"),
    Look(SKY, "P", (0, (4, 1, 1, 1, 1, 1)), "|||"),
    Look(GOLD, "X", (0, (2, 1)), "ooo"),
    Look(GREY, "*", (0, (9, 2, 2, 2)), "\\\\\\"),
)


def look(place: int) -> Look:
    """The look of a series by its place; past the eighth, colours come again with other markers and lines."""
    again = place + place // len(LOOKS)
    return LOOKS[again % len(LOOKS)]._replace(color=LOOKS[place % len(LOOKS)].color)


def legend_below(figure: Figure, axes: Axes) -> None:
    """A legend under the axes, where it hides nothing; the figure grows by its height."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, 58) for label in labels]
    longest = max((len(line) for label in wrapped for line in label.splitlines()), default=0)
    columns = min(len(labels), 3 if longest <= 14 else 2 if longest <= 26 else 1) or 1
    rows = -(-sum(label.count("\n") + 1 for label in wrapped) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows)
    if labels:
        figure.legend(
            handles, wrapped, loc="outside lower center", ncols=columns, frameon=False, fontsize=8, handlelength=4.0
        )


def limit(axes: Axes, values: Sequence[float], ends: Sequence[float], along: str = "y") -> None:
    """Show all values and, as far as they leave the values readable, the ends of their intervals.

    The t interval of two seeds is thirteen standard errors wide to each side: shown whole, it would flatten all else.
    """
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    low, high = max(min([low, *ends]), low - span), min(max([high, *ends]), high + span)
    room = 0.04 * ((high - low) or 1.0)
    (axes.set_ylim if along == "y" else axes.set_xlim)(low - room, high + room)


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.png and `stem`.svg; the same figure gives the same bytes.

    Args:
        figure: What to write.
        stem: Path without a suffix; a dot in its name is kept (`sigma_0.5`).

    Returns:
        The paths of both files.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg"))
    nameless: dict[str, Any] = {"Software": None}
    figure.savefig(png, dpi=DPI, metadata=nameless)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": stem.name}):
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return png, svg
