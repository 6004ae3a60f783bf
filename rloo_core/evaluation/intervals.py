"""Win rates and differences with 95 % intervals, from a bootstrap over prompts."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

DRAWS = 4000  # bootstrap samples: the interval's ends are then known to about a fiftieth of its width

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def named(self, name: str) -> dict[str, float]:
        """`name`, `name_low`, `name_high`: how estimates stand in summaries."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def wins(scores: Sequence[float], opponent_scores: Sequence[float]) -> list[float]:
    """1 where a score is higher than the opponent's, 0 where it is lower, one half for a tie."""
    return [0.5 + 0.5 * float(np.sign(a - b)) for a, b in zip(scores, opponent_scores, strict=True)]


def win_rate(outcomes: Sequence[float], prompts: Sequence[int] | None = None, seed: int = 0) -> Estimate:
    """Share of wins, ties one half, with the interval of a bootstrap over prompts.

    Where all outcomes are the same a bootstrap sees no spread, and Wilson's interval for that many prompts is given.

    Args:
        outcomes: 1, 0.5 or 0 a judged completion.
        prompts: The prompt of each outcome; None: one outcome a prompt.
        seed: Of the bootstrap.

    Returns:
        Between 0 and 1.

    Raises:
        ValueError: If there are no outcomes.

    References:
        Wilson 1927; Brown, Cai & DasGupta 2001, https://doi.org/10.1214/ss/1009213286
    """
    if not outcomes:
        raise ValueError("a win rate needs at least one outcome")
    if min(outcomes) == max(outcomes):
        return _wilson(outcomes[0], len(set(prompts)) if prompts is not None else len(outcomes))
    return bootstrap_mean(outcomes, prompts, seed)


def paired_difference(
    after: Sequence[float], before: Sequence[float], prompts: Sequence[int] | None = None, seed: int = 0
) -> Estimate:
    """Mean of after - before over the same prompts, with the interval of a bootstrap over those prompts.

    Args:
        after: One value a judged completion.
        before: The same completions' values before.
        prompts: The prompt of each pair; None: one pair a prompt.
        seed: Of the bootstrap.

    Raises:
        ValueError: If there are fewer than two pairs, or the lengths differ.
    """
    if len(after) != len(before) or len(after) < 2:
        raise ValueError(f"paired values needed, at least two; got {len(after)} and {len(before)}")
    return bootstrap_mean([a - b for a, b in zip(after, before, strict=True)], prompts, seed)


def bootstrap_mean(values: Sequence[float], prompts: Sequence[int] | None = None, seed: int = 0) -> Estimate:
    """Mean of all values, with the percentile interval of a bootstrap that draws whole prompts.

    Completions of one prompt resemble each other: drawn one by one they would look like more evidence than they are.
    The percentiles are widened so that few prompts are covered as a t interval would cover them (Hesterberg 2015).

    Args:
        values: One a completion.
        prompts: The prompt of each value; None: one value a prompt.
        seed: Of the bootstrap.

    Raises:
        ValueError: If there are no values.

    References:
        Hesterberg 2015, https://arxiv.org/abs/1411.5279, section 3.4 (the expanded percentile interval)
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    sums, counts = prompt_sums(values, prompts)
    drawn = sums.mean() + np.zeros(1)
    if len(sums) > 1:
        cells, how_many = np.unique(np.stack([sums, counts]), axis=1, return_counts=True)
        times = np.random.default_rng(seed).multinomial(len(sums), how_many / len(sums), size=DRAWS)
        drawn = (times @ cells[0]) / (times @ cells[1])
    low, high = np.quantile(drawn, [tail_probability(len(sums)), 1 - tail_probability(len(sums))])
    value = float(sums.sum() / counts.sum())
    return Estimate(value, min(value, float(low)), max(value, float(high)))


def prompt_sums(values: Sequence[float], prompts: Sequence[int] | None) -> tuple[Floats, Floats]:
    """Sum and number of each prompt's values."""
    column = np.asarray(values, dtype=float)
    if prompts is None:
        return column, np.ones_like(column)
    if len(prompts) != len(values):
        raise ValueError(f"every value needs its prompt; got {len(values)} values and {len(prompts)} prompts")
    where: NDArray[np.intp] = np.unique(np.asarray(prompts), return_inverse=True)[1]
    sums: Floats = np.bincount(where, weights=column).astype(np.float64)
    return sums, np.bincount(where).astype(np.float64)


def tail_probability(prompts: int) -> float:
    """What a 95 % percentile interval cuts off at each end: 2.5 %, less where prompts are few."""
    if prompts < 2:
        return 0.025
    widened = np.sqrt(prompts / (prompts - 1)) * stats.t.ppf(0.975, prompts - 1)
    return float(stats.norm.cdf(-widened))


def _wilson(share: float, n: int) -> Estimate:
    z = float(stats.norm.ppf(0.975))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * float(np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)))
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))
