"""Win rates and differences with 95 % intervals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Estimate(NamedTuple):
    """A mean with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def wins(scores: Sequence[float], opponent_scores: Sequence[float]) -> list[float]:
    """1 where a score is higher than the opponent's, 0 where it is lower, one half for a tie."""
    return [0.5 + 0.5 * float(np.sign(a - b)) for a, b in zip(scores, opponent_scores, strict=True)]


def win_rate(outcomes: Sequence[float]) -> Estimate:
    """Share of wins with Wilson's interval; ties count half, which makes the interval slightly too wide.

    Args:
        outcomes: 1, 0.5 or 0 a prompt.

    Returns:
        Between 0 and 1.

    Raises:
        ValueError: If there are no outcomes.

    References:
        Wilson 1927; Brown, Cai & DasGupta 2001, https://doi.org/10.1214/ss/1009213286
    """
    if not outcomes:
        raise ValueError("a win rate needs at least one outcome")
    n, share = len(outcomes), float(np.mean(outcomes))
    z = float(stats.norm.ppf(0.975))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def paired_difference(after: Sequence[float], before: Sequence[float]) -> Estimate:
    """Mean of after - before over the same prompts, with the t interval of the paired differences.

    Raises:
        ValueError: If there are fewer than two pairs, or the lengths differ.
    """
    if len(after) != len(before) or len(after) < 2:
        raise ValueError(f"paired values needed, at least two; got {len(after)} and {len(before)}")
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    mean, error = float(differences.mean()), float(stats.sem(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return Estimate(mean, mean - half, mean + half)
