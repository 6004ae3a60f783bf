"""What stands in a run's figures, and in the tables beside them: needs nothing that draws."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NAMES = {"sft": "SFT", "policy": "policy", "policy_against_sft": "policy v. SFT"}
EQUAL_LENGTH = ", at equal length"

Row = Mapping[str, Any]


def win_rate_rows(summary: Mapping[str, float]) -> list[dict[str, Any]]:
    """The win rates of a summary, as they stand in the figure and in its table: label, value, low, high (percent)."""
    rows = []
    for name, label in NAMES.items():
        for mode in ("sampled", "greedy"):
            rows += _rate(summary, f"evaluation/{name}/{mode}/win_rate", f"{label}, {mode}")
            rows += _rate(
                summary, f"evaluation/{name}/{mode}/length_controlled_win_rate", f"{label}, {mode}{EQUAL_LENGTH}"
            )
    return rows + _rate(summary, "evaluation/sft/best_of_n/win_rate", "SFT, best of n by the reward")


def histogram_edges(values: Sequence[float]) -> list[float]:
    """Up to 24 bins of one width; whole numbers are not split."""
    low, high = min(values), max(values)
    if all(float(value).is_integer() for value in values):
        width = max(1, int(np.ceil((high - low + 1) / 24)))
        return [float(edge) for edge in np.arange(low - 0.5, high + width + 0.5, width)]
    return [float(edge) for edge in np.linspace(low, high if high > low else low + 1.0, 25)]


def length_label(row: Row) -> str:
    """A bin of relative lengths in words."""
    if row["high"] is None:
        return f"over {row['low']:.2g}×"
    return f"under {row['high']:.2g}×" if row["low"] == 0 else f"{row['low']:.2g}–{row['high']:.2g}×"


def _rate(summary: Mapping[str, float], key: str, label: str) -> list[dict[str, Any]]:
    if key not in summary:
        return []
    value, low, high = (100 * summary[key + end] for end in ("", "_low", "_high"))
    return [{"label": label, "value": value, "low": low, "high": high}]
