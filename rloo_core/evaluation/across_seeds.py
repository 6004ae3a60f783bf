"""What seeds say together: t intervals, paired contrasts, Holm's correction, verdicts, and readings of training curves.

One number a seed goes in. With five seeds the t interval covers at its level if the seeds scatter normally; the
percentiles of a bootstrap cover only about 84 % (both are simulated in this module's tests).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rloo_core.evaluation.intervals import Estimate

LEVEL = 0.05  # of every test; intervals are at 1 - LEVEL
ROUNDING = 1e-12  # seeds that scatter by less, relative to their size, are equal but for rounding

Verdict = Literal["supported", "not supported", "undecided"]


class Contrast(NamedTuple):
    """A paired difference over seeds, tested against 0."""

    difference: float  # mean over seeds
    low: float  # ends of the 95 % t interval
    high: float
    p: float  # two-sided, uncorrected
    seeds: int
    effect: float | None  # difference / standard deviation over seeds: how large against seed noise; None without noise


def seed_interval(values: Sequence[float]) -> Estimate:
    """Mean over seeds with its 95 % t interval: mean ± t(0.975, n - 1) · sd / √n.

    Args:
        values: One a seed, at least two. One seed has no interval: print its value without one.

    Raises:
        ValueError: If there are fewer than two values, or one is not finite.
    """
    column = _finite(values, "an interval over seeds")
    mean, half = _mean_and_half_width(column)
    return Estimate(mean, mean - half, mean + half)


def contrast(values: Sequence[float]) -> Contrast:
    """A contrast's mean, interval and t test against 0; for two methods this is the paired t test over seeds.

    Seeds that all give the same value leave nothing to test: the interval has no width, p is 1, and there is no effect
    size. With few seeds and few prompts a win rate's differences coincide by chance; that is no certainty.

    Args:
        values: The contrast of each seed, e.g. method A minus method B on the same seed and prompts; at least two.

    Raises:
        ValueError: If there are fewer than two values, or one is not finite.
    """
    column = _finite(values, "a contrast over seeds")
    mean, half = _mean_and_half_width(column)
    if half == 0.0:
        return Contrast(mean, mean, mean, 1.0, len(column), None)
    spread = float(column.std(ddof=1))
    t = mean / (spread / np.sqrt(len(column)))
    p = float(2 * stats.t.sf(abs(t), len(column) - 1))
    return Contrast(mean, mean - half, mean + half, p, len(column), mean / spread)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected so that the chance of even one false claim in the family stays at the level (Holm 1979).

    The i-th smallest of m is multiplied by m - i + 1, then made no smaller than the one before and at most 1.

    Args:
        p: Of every claim in the family, in any order.

    Returns:
        The corrected values, in the same order.

    Raises:
        ValueError: If one is not between 0 and 1.

    References:
        Holm 1979, "A simple sequentially rejective multiple test procedure"
    """
    for value in p:
        _check_p(value)
    corrected = [0.0] * len(p)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = largest
    return corrected


def verdict(claimed: Contrast, corrected_p: float, sign: Literal[1, -1], margin: float) -> Verdict:
    """What the seeds say of a claim that predicts a contrast's sign.

    - supported: corrected p < 0.05 and the predicted sign, however small the difference: the claim is of a sign.
    - not supported: corrected p < 0.05 and the opposite sign, or the 95 % interval lies within ±margin.
    - undecided: anything else, and seeds without any scatter, which say nothing about how sure they are.

    Args:
        claimed: The contrast of the claim.
        corrected_p: Its p-value after `holm` over all claims that are printed together.
        sign: 1 where the claim says the contrast is above 0, -1 where below.
        margin: The largest difference that does not matter, fixed before looking; 0: every one matters.

    Raises:
        ValueError: If sign, margin or p-value are none.
    """
    _check_p(corrected_p)
    if sign not in (1, -1) or not 0 <= margin < float("inf"):
        raise ValueError(f"a claim needs sign 1 or -1 and a margin of 0 or more; got sign {sign}, margin {margin}")
    if claimed.low == claimed.high:
        return "undecided"
    if corrected_p < LEVEL:
        if sign * claimed.difference > 0:
            return "supported"
        if sign * claimed.difference < 0:
            return "not supported"
    within = margin > 0 and -margin <= claimed.low and claimed.high <= margin
    return "not supported" if within else "undecided"


def at_kl(kls: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """A training curve's value when its KL first comes to a budget, by linear interpolation between measurements.

    KL may fall again later: what counts is the first time.

    Args:
        kls: KL to the reference at each measurement, in the order of training, usually from 0.
        values: The curve at the same measurements.
        target: The budget, nats.

    Returns:
        None where the curve was never seen there: it stays below, or its first measurement already lies above.

    Raises:
        ValueError: If the lengths differ, there are no measurements, or one is not finite.
    """
    x, y = _curve(kls, values)
    return None if x[0] > target else _where_first(x, y, target)


def common_kl(trajectories: Sequence[Sequence[float]]) -> float:
    """The largest KL that every trajectory comes to: the largest budget at which all can be compared.

    Args:
        trajectories: The KLs of each training curve.

    Raises:
        ValueError: If there are no trajectories, one is empty, or a value is not finite.
    """
    if not trajectories:
        raise ValueError("a common KL needs at least one trajectory")
    return min(float(_finite(kls, "a trajectory", at_least=1).max()) for kls in trajectories)


def peak_drop(values: Sequence[float]) -> float:
    """How far a curve ends below its highest value.

    Never negative, and above 0 from noise alone: compare it between settings, do not test it against 0.

    Raises:
        ValueError: If there are no values, or one is not finite.
    """
    column = _finite(values, "a curve", at_least=1)
    return float(column.max() - column[-1])


def first_reach(xs: Sequence[float], values: Sequence[float], level: float) -> float | None:
    """Where a curve first comes to a level, by linear interpolation: e.g. the completions it takes to a reward.

    Args:
        xs: Where each value was measured, rising.
        values: The curve.
        level: What it must come to from below.

    Returns:
        The first x if the curve starts at or above the level; None where it never gets there.

    Raises:
        ValueError: If the lengths differ, there are no values, or one is not finite.
    """
    x, y = _curve(xs, values)
    return _where_first(y, x, level)


def _where_first(levels: NDArray[np.float64], read: NDArray[np.float64], target: float) -> float | None:
    reached = np.flatnonzero(levels >= target)
    if len(reached) == 0:
        return None
    after = int(reached[0])
    if after == 0:
        return float(read[0])
    share = (target - levels[after - 1]) / (levels[after] - levels[after - 1])
    return float(read[after - 1] + share * (read[after] - read[after - 1]))


def _mean_and_half_width(column: NDArray[np.float64]) -> tuple[float, float]:
    spread = float(column.std(ddof=1))
    if spread <= ROUNDING * float(np.abs(column).max()):
        return float(column[0]), 0.0
    return float(column.mean()), float(stats.t.ppf(1 - LEVEL / 2, len(column) - 1)) * spread / len(column) ** 0.5


def _curve(xs: Sequence[float], values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if len(xs) != len(values):
        raise ValueError(f"a curve needs as many places as values; got {len(xs)} and {len(values)}")
    return _finite(xs, "a curve's places", at_least=1), _finite(values, "a curve", at_least=1)


def _finite(values: Sequence[float], what: str, at_least: int = 2) -> NDArray[np.float64]:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or len(column) < at_least:
        raise ValueError(f"{what} needs at least {at_least} value{'s' if at_least > 1 else ''}; got {len(values)}")
    if not np.isfinite(column).all():
        raise ValueError(f"{what} needs finite values; got {column.tolist()}")
    return column


def _check_p(p: float) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"a p-value lies between 0 and 1; got {p}")
