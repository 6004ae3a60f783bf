"""Win rates that do not pay for length: by bins of length, and by a logistic model of length's part in a win."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rloo_core.evaluation.intervals import Estimate, Floats, tail_probability, win_rate

DRAWS = 1000  # refits; each fits two numbers to all outcomes
STEPS = 30  # of Newton's method; it takes five to ten where the data has both wins and losses
PENALTY = np.array([1e-3, 1e-1])  # ridge on (strength, length): keeps fits of nearly separated outcomes finite
BINS = (2 / 3, 0.9, 1 / 0.9, 1.5)  # edges of the ratio of lengths


class LengthBin(NamedTuple):
    """Comparisons in which A's completion is between `low` and `high` times as long as B's."""

    low: float
    high: float
    compared: int
    rate: Estimate | None


class LengthControlled(NamedTuple):
    """The win rate at equal length, and what length does to a win."""

    rate: Estimate
    length_effect: float  # log-odds from no difference in length to a large one; positive: longer wins


def win_rate_by_length(
    outcomes: Sequence[float], lengths: Sequence[tuple[float, float]], prompts: Sequence[int], seed: int = 0
) -> list[LengthBin]:
    """Win rates of comparisons in which the lengths differ alike.

    Args:
        outcomes: A's: 1, 0.5 or 0 a comparison.
        lengths: Of A's and B's completion, in any one unit.
        prompts: The prompt of each comparison.
        seed: Of the bootstrap.

    Returns:
        Bins from "A is much shorter" to "A is much longer"; a bin without comparisons has no rate.
    """
    ratios = [max(a, 1) / max(b, 1) for a, b in lengths]
    edges = (0.0, *BINS, float("inf"))
    bins: list[LengthBin] = []
    for low, high in pairwise(edges):
        inside = [i for i, ratio in enumerate(ratios) if low <= ratio < high]
        rate = win_rate([outcomes[i] for i in inside], [prompts[i] for i in inside], seed) if inside else None
        bins.append(LengthBin(low, high, len(inside), rate))
    return bins


def length_controlled_win_rate(
    outcomes: Sequence[float], lengths: Sequence[tuple[float, float]], prompts: Sequence[int], seed: int = 0
) -> LengthControlled:
    """The win rate had both completions been equally long: AlpacaEval 2's logistic model.

        logit P(A wins) = strength + length_effect * tanh((length of A - length of B) / its standard deviation)

    fitted to all comparisons, then read at a difference of zero. AlpacaEval's third term, how hard an instruction is,
    is estimated there from many models; of two models' comparisons alone it cannot be, and is left out.

    Args:
        outcomes: A's: 1, 0.5 or 0 a comparison; a tie counts as half a win and half a loss.
        lengths: Of A's and B's completion, in any one unit.
        prompts: The prompt of each comparison; the interval is a bootstrap over prompts.
        seed: Of the bootstrap.

    Raises:
        ValueError: If there are no outcomes.

    References:
        Dubois et al. 2024, https://arxiv.org/abs/2404.04475
    """
    plain = win_rate(outcomes, prompts, seed)
    won = np.asarray(outcomes, dtype=float)
    difference = np.array([a - b for a, b in lengths], dtype=float)
    spread = float(difference.std())
    if won.min() == won.max() or spread == 0.0:
        return LengthControlled(plain, 0.0)
    feature = np.tanh(difference / spread)
    strength, effect = _fit(np.ones((1, len(won))), feature, won)[0]
    _, where = np.unique(np.asarray(prompts), return_inverse=True)
    count = int(where.max()) + 1
    times = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    drawn = _logistic(_fit(times[:, where].astype(float), feature, won)[:, 0])
    low, high = np.quantile(drawn, [tail_probability(count), 1 - tail_probability(count)])
    value = float(_logistic(np.array(strength)))
    return LengthControlled(Estimate(value, min(value, float(low)), max(value, float(high))), float(effect))


def _fit(weights: Floats, feature: Floats, outcomes: Floats) -> Floats:
    """Penalised maximum likelihood of (strength, length effect) by Newton's method, many weightings at once.

    Args:
        weights: How often each comparison counts, shape [D, N].
        feature: Shape [N].
        outcomes: Shape [N].

    Returns:
        Shape [D, 2].
    """
    design = np.stack([np.ones_like(feature), feature])  # [2, N]
    squares = np.stack([np.ones_like(feature), feature, feature * feature], axis=1)  # [N, 3]
    fitted = np.zeros((len(weights), 2))
    for _ in range(STEPS):
        chance = _logistic(fitted @ design)
        gradient = (weights * (outcomes - chance)) @ design.T - PENALTY * fitted
        a, b, d = ((weights * chance * (1 - chance)) @ squares).T
        a, d = a + PENALTY[0], d + PENALTY[1]
        step = np.stack([d * gradient[:, 0] - b * gradient[:, 1], a * gradient[:, 1] - b * gradient[:, 0]], axis=1)
        step = np.clip(step / (a * d - b * b)[:, None], -2.0, 2.0)
        fitted = fitted + step
        if np.abs(step).max() < 1e-8:
            break
    return fitted


def _logistic(values: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0)))
