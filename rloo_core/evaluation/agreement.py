"""How far two judges, or a judge and people, agree."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.metrics import cohen_kappa_score

CHOICES = (0.0, 0.5, 1.0)  # B, tie, A


class Agreement(NamedTuple):
    """Of two judges on the comparisons that both have decided."""

    compared: int
    share: float
    kappa: float


def agreement(first: Sequence[float | None], second: Sequence[float | None]) -> Agreement | None:
    """Share of equal outcomes and Cohen's kappa: agreement beyond what the judges' habits alone would give.

    Args:
        first: One judge's outcomes: 1 (A), 0.5 (tie), 0 (B); None where it gave none. What lies between (two orders
            that disagree by half) counts for the side it leans to.
        second: The other's, in the same order.

    Returns:
        None where no comparison has both outcomes. Kappa is 1 where both always say the same one thing.

    References:
        Cohen 1960, https://doi.org/10.1177/001316446002000104
    """
    pairs = [(choice(a), choice(b)) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    left, right = zip(*pairs, strict=True)
    share = float(np.mean([a == b for a, b in pairs]))
    if len(set(left) | set(right)) == 1:
        return Agreement(len(pairs), share, 1.0)
    labels = [str(value) for value in CHOICES]
    kappa = cohen_kappa_score([str(a) for a in left], [str(b) for b in right], labels=labels)
    return Agreement(len(pairs), share, float(kappa))


def choice(outcome: float) -> float:
    """An outcome as one of B, tie, A."""
    return 0.5 + 0.5 * float(np.sign(outcome - 0.5))


def majority(votes: Sequence[float]) -> float | None:
    """What more voters chose than chose anything else; None where two choices share the lead.

    Args:
        votes: 1 (A), 0.5 (tie) or 0 (B) each.
    """
    counts = {value: sum(vote == value for vote in votes) for value in CHOICES}
    leaders = [value for value, count in counts.items() if count == max(counts.values())]
    return leaders[0] if len(leaders) == 1 and votes else None


def decided_accuracy(outcomes: Sequence[float | None], labels: Sequence[float | None]) -> float | None:
    """Share of comparisons with a clear human preference in which a judge has it; a judge's tie is worth half.

    Args:
        outcomes: The judge's: 1 (A), 0.5, 0 (B); None, where it gave none, is left out.
        labels: People's, the same way; ties and None are left out.

    Returns:
        None where no comparison has both.
    """
    points = [
        1.0 - abs(choice(outcome) - label)
        for outcome, label in zip(outcomes, labels, strict=True)
        if outcome is not None and label in (0.0, 1.0)
    ]
    return float(np.mean(points)) if points else None
