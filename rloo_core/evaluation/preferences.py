"""How well a reward model knows held-out preferences: accuracy, calibration, and its taste for length."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from rloo_core.evaluation.intervals import win_rate, wins

BINS = 10  # of confidence, between one half and one


def preference_measures(
    chosen: Sequence[float], rejected: Sequence[float], lengths: Sequence[tuple[int, int]], seed: int = 0
) -> dict[str, float]:
    """Measures of a Bradley–Terry reward model, P(chosen preferred) = sigmoid(score of chosen - score of rejected).

    Args:
        chosen: Score of each pair's preferred completion.
        rejected: Score of the other one.
        lengths: Tokens of (chosen, rejected).
        seed: Of the bootstrap.

    Returns:
        accuracy…     share of pairs ranked as people ranked them, ties one half, with its interval
        log_loss      nats a pair; ln 2 = 0.693 is chance
        brier         mean squared error of the probability; 0.25 is chance
        calibration_error  expected difference between confidence and accuracy over ten bins of confidence
        longer_preferred, longer_chosen  how often the model, and people, prefer the longer one (of unequal lengths)
        length_correlation  Spearman's, between differences in score and in length; absent where one never varies
    """
    difference = np.asarray(chosen, dtype=float) - np.asarray(rejected, dtype=float)
    longer = np.array([a - b for a, b in lengths], dtype=float)
    chance = 1 / (1 + np.exp(-np.clip(difference, -500, 500)))
    found = win_rate(wins(chosen, rejected), seed=seed).named("accuracy")
    found["log_loss"] = float(np.logaddexp(0, -difference).mean())
    found["brier"] = float(((1 - chance) ** 2).mean())
    found["calibration_error"] = calibration_error(difference)
    unequal = longer != 0
    if unequal.any():
        found["longer_preferred"] = float((0.5 + 0.5 * np.sign(difference * longer)[unequal]).mean())
        found["longer_chosen"] = float((longer[unequal] > 0).mean())
    correlation = rank_correlation(difference.tolist(), longer.tolist())
    return found | ({} if correlation is None else {"length_correlation": correlation})


def calibration_error(difference: Sequence[float] | np.ndarray) -> float:
    """Expected calibration error of sigmoid(|difference|) as the probability that the sign is right.

    Sum over bins of confidence of (share of pairs) x |accuracy - mean confidence|.

    References:
        Guo et al. 2017, https://arxiv.org/abs/1706.04599, eq. 3
    """
    return float(sum(row["share"] * abs(row["accuracy"] - row["confidence"]) for row in calibration_curve(difference)))


def calibration_curve(difference: Sequence[float] | np.ndarray) -> list[dict[str, float]]:
    """Confidence and accuracy by bin of confidence: what a reliability diagram shows; empty bins are left out.

    Args:
        difference: Score of the preferred completion minus the other's.

    Returns:
        A row a bin: confidence (mean), accuracy, share (of all pairs), pairs.
    """
    values = np.asarray(difference, dtype=float)
    confidence = 1 / (1 + np.exp(-np.clip(np.abs(values), 0, 500)))
    correct = 0.5 + 0.5 * np.sign(values)
    bins = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    return [
        {
            "confidence": float(confidence[bins == b].mean()),
            "accuracy": float(correct[bins == b].mean()),
            "share": float((bins == b).mean()),
            "pairs": float((bins == b).sum()),
        }
        for b in range(BINS)
        if (bins == b).any()
    ]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's; None for fewer than three values, or where one never varies."""
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return None
    return float(stats.spearmanr(first, second).statistic)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Variance (with n - 1) and quantiles, by the end of their names."""
    column = np.asarray(values, dtype=float)
    quantiles = np.quantile(column, [0.05, 0.25, 0.5, 0.75, 0.95])
    named = dict(zip(("p05", "p25", "p50", "p75", "p95"), map(float, quantiles), strict=True))
    return {"variance": float(column.var(ddof=1)) if len(column) > 1 else 0.0} | named
