"""Several rewards with weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rloo_core.rewards.base import Reward, Row
from rloo_core.types import CompletionGroups


@dataclass(frozen=True)
class Term:
    """One reward of a sum.

    Attributes:
        name: What its metric is called: `reward/{name}_mean`.
        reward: The reward.
        weight: What it is multiplied with.
    """

    name: str
    reward: Reward
    weight: float


def term_names(names: Sequence[str]) -> list[str]:
    """Names of terms, told apart by a number where one comes again."""
    return [name if names.count(name) == 1 else f"{name}_{names[:i].count(name) + 1}" for i, name in enumerate(names)]


@dataclass
class CombinedReward:
    """The weighted sum of several rewards.

    A completion that some of them cannot score is worth what the others say (TRL's convention: rewards for different
    kinds of rows can stand side by side); one that none can score is unscorable (NaN).

    Attributes:
        terms: At least one.
        last: Each term's rewards of the last call, by name, without weights. Shape [P, K].
    """

    terms: Sequence[Term]
    last: dict[str, Tensor] = field(default_factory=dict, init=False)

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        self.last = {term.name: term.reward(groups, rows) for term in self.terms}
        weighted = torch.stack([term.weight * self.last[term.name] for term in self.terms])
        known = ~weighted.isnan()
        return weighted.nansum(0).masked_fill(~known.any(0), torch.nan)
