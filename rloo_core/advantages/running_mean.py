"""The baseline of REINFORCE: the mean of all rewards seen before this batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rloo_core.advantages.groups import batch_leave_one_out


@dataclass(frozen=True)
class RunningMean:
    """Arithmetic mean of all past shaped rewards, one global number.

        b = 1/S * sum over all S rewards of earlier batches

    The current batch is not part of it: a baseline that has seen the reward it is subtracted from shrinks the expected
    gradient. It is no exponential average, so it has no half-life to choose, and lags where rewards drift.

    Attributes:
        count: S, completions so far.
        total: Sum of their shaped rewards, reward units.

    References:
        Ahmadian et al. 2024, Eqs. 7 and 8, https://arxiv.org/abs/2402.14740
    """

    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """The baseline, reward units.

        Raises:
            ValueError: If nothing has been seen yet.
        """
        if self.count == 0:
            raise ValueError(
                "the mean of past rewards needs at least one; the first batch has no past: compare within it"
            )
        return self.total / self.count

    def advantages(self, rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
        """Rewards minus the mean of the past; for the first batch, minus the mean of the others of the batch.

        Args:
            rewards: Shaped rewards of the whole step. Shape [P, K].
            scorable: Which of them count; all by default. Unscorable ones get 0. Shape [P, K].

        Returns:
            Shape [P, K].
        """
        if self.count == 0:
            return batch_leave_one_out(rewards, scorable)
        advantages = rewards - self.mean
        return advantages if scorable is None else advantages.masked_fill(~scorable, 0.0)

    def updated(self, values: Tensor) -> "RunningMean":
        """The mean after one more batch.

        Args:
            values: Shaped rewards of all scorable completions of the step, over all processes. Any shape.

        Raises:
            ValueError: If one of them is not finite: it would stay in the mean for ever.
        """
        total = self.total + float(values.detach().to("cpu", torch.float64).sum())
        if not math.isfinite(total):
            raise ValueError(
                "a running mean needs finite rewards; got NaN or infinity. Leave unscorable ones out (`scorable`)."
            )
        return RunningMean(self.count + values.numel(), total)

    def to_json(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"count": self.count, "total": self.total}

    @classmethod
    def from_json(cls, state: Mapping[str, float]) -> "RunningMean":
        """The inverse of `to_json`, to the last bit."""
        return cls(int(state["count"]), float(state["total"]))
