"""Reward modelling: Bradley-Terry on preference pairs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.losses.ranking import bradley_terry_loss
from rloo_core.processes import Processes
from rloo_core.trainer import Method, Update
from rloo_core.types import CompletionGroups

CHOSEN, REJECTED = 0, 1


@dataclass
class RewardModelling(Method):
    """Pairs are groups of K = 2: the chosen completion first, the rejected one second."""

    model: nn.Module
    train: GivenCompletions
    validation: GivenCompletions
    batch_size: int
    seed: int
    processes: Processes = field(default_factory=Processes)
    _totals: dict[str, float] = field(default_factory=dict, init=False)

    def updates(self, step: int) -> Iterator[Update]:
        batches = self.train.step(step, self.batch_size, self.seed, self.processes)
        own = sum(int(batch.response_mask.sum()) for batch in batches)
        self.tokens = int(self.processes.sum(torch.tensor(own)))
        self._totals = dict.fromkeys(("loss", "accuracy", "margin/mean"), 0.0)
        yield [lambda batch=batch: self._micro_loss(batch, self.batch_size) for batch in batches]  # type: ignore[misc]

    def idle(self) -> Tensor:
        return self._loss(self.train.first(), 1)[0] * 0.0

    def _micro_loss(self, groups: CompletionGroups, pairs: int) -> Tensor:
        loss, totals = self._loss(groups, pairs)
        self._totals = {name: self._totals[name] + value for name, value in totals.items()}
        return loss

    def _loss(self, groups: CompletionGroups, pairs: int) -> tuple[Tensor, dict[str, float]]:
        rewards = self.model(groups.to(next(self.model.parameters()).device))
        chosen, rejected = rewards[:, CHOSEN], rewards[:, REJECTED]
        loss = bradley_terry_loss(chosen, rejected, pairs)
        margin = (chosen - rejected).detach()
        correct = (margin > 0).sum() + 0.5 * (margin == 0).sum()
        totals = {
            "loss": loss.item(),
            "accuracy": correct.item() / pairs,
            "margin/mean": margin.sum().item() / pairs,
        }
        return loss, totals

    def metrics(self) -> Mapping[str, float]:
        sums = self.processes.sum(torch.tensor(list(self._totals.values()), dtype=torch.float64))
        return dict(zip(self._totals, sums.tolist(), strict=True))

    @torch.no_grad()
    def evaluate(self, step: int) -> Mapping[str, float]:
        """Loss, accuracy (ties count half) and margin on held-out pairs."""
        if len(self.validation) == 0:
            return {}
        sums: dict[str, float] = {}
        for batch in self.validation.all():
            for name, value in self._loss(batch, len(self.validation))[1].items():
                sums[f"validation/{name}"] = sums.get(f"validation/{name}", 0.0) + value
        return sums
