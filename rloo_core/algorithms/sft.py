"""Supervised fine-tuning: likelihood of demonstrated completions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.logprobs import completion_logprobs
from rloo_core.losses.supervised import completion_nll
from rloo_core.processes import Processes
from rloo_core.trainer import Method, Update
from rloo_core.types import CompletionGroups


@dataclass
class SupervisedMethod(Method):
    """Loss on completion tokens only, averaged over the tokens of a step."""

    model: nn.Module
    train: GivenCompletions
    validation: GivenCompletions
    batch_size: int
    seed: int
    processes: Processes = field(default_factory=Processes)
    _loss: float = field(default=0.0, init=False)

    def updates(self, step: int) -> Iterator[Update]:
        batches = self.train.step(step, self.batch_size, self.seed, self.processes)
        own = sum(int(batch.response_mask.sum()) for batch in batches)
        self.tokens = int(self.processes.sum(torch.tensor(own)))
        self._loss = 0.0
        yield [lambda batch=batch: self._micro_loss(batch, self.tokens) for batch in batches]  # type: ignore[misc]

    def idle(self) -> Tensor:
        return self._nll(self.train.first(), 1) * 0.0

    def _micro_loss(self, groups: CompletionGroups, tokens: int) -> Tensor:
        loss = self._nll(groups, tokens)
        self._loss += loss.item()
        return loss

    def _nll(self, groups: CompletionGroups, tokens: int) -> Tensor:
        groups = groups.to(next(self.model.parameters()).device)
        logprobs = completion_logprobs(self.model, groups, temperature=1.0).logprobs
        return completion_nll(logprobs, groups.response_mask, tokens)

    def metrics(self) -> Mapping[str, float]:
        return {"loss": self.processes.sum(torch.tensor(self._loss, dtype=torch.float64)).item()}

    @torch.no_grad()
    def evaluate(self, step: int) -> Mapping[str, float]:
        """Held-out loss, nats a token."""
        if len(self.validation) == 0:
            return {}
        batches = self.validation.all()
        tokens = sum(int(batch.response_mask.sum()) for batch in batches)
        return {"validation/loss": sum(self._nll(batch, tokens).item() for batch in batches)}
