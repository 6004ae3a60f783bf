"""Direct preference optimisation: DPO, conservative DPO and IPO, offline on given pairs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.batching import step_indices
from rloo_core.layout import Layout
from rloo_core.logprobs import completion_logprobs
from rloo_core.losses.preference import dpo_loss, implicit_rewards, ipo_loss
from rloo_core.masking import masked_sum
from rloo_core.processes import Processes
from rloo_core.settings import AlgorithmSettings
from rloo_core.trainer import Method, Update
from rloo_core.types import CompletionGroups

CHOSEN, REJECTED = 0, 1


@dataclass
class PreferenceOptimisation(Method):
    """Pairs are groups of K = 2: the chosen completion first. Log-probs are those at temperature 1, summed over tokens.

    Attributes:
        settings: Loss, beta, label smoothing, batch sizes.
        policy: The model in training, prepared for the processes.
        reference: Log-probs [P, K, T] under its frozen start.
        train: Pairs to learn from.
        validation: Held-out pairs; may be empty.
        layout: Whether the two completions share their prompt's computation.
        processes: Those that train together.
        monitor: Held-out metrics of the policy's own completions, as for every method.
    """

    settings: AlgorithmSettings
    policy: nn.Module
    reference: Callable[[CompletionGroups], Tensor]
    train: GivenCompletions
    validation: GivenCompletions
    layout: Layout
    processes: Processes
    monitor: Callable[[], Mapping[str, float]]
    _sums: dict[str, float] = field(default_factory=dict, init=False)

    def updates(self, step: int) -> Iterator[Update]:
        """Each step walks on through the pairs; what online methods call a rollout batch is given here."""
        own = self.settings
        pairs, size = own.rollout_batch_size // 2, (own.step_batch_size or own.rollout_batch_size) // 2
        indices = step_indices(step, pairs, len(self.train), own.seed, "training order")
        self._sums, self.tokens = {}, 0
        for _ in range(own.epochs_per_rollout):
            for start in range(0, pairs, size):
                yield self._update(indices[start : start + size], pairs * own.epochs_per_rollout)

    def _update(self, indices: Sequence[int], pairs_of_step: int) -> Update:
        batches = self.train.micro_batches(self.processes.share(indices))
        self.tokens += int(self.processes.sum(torch.tensor(sum(int(b.response_mask.sum()) for b in batches))))
        return [lambda b=batch: self._micro_loss(b, len(indices), pairs_of_step) for batch in batches]  # type: ignore[misc]

    def idle(self) -> Tensor:
        return self._loss(self.train.first(), 1)[0] * 0.0

    def _micro_loss(self, groups: CompletionGroups, pairs: int, pairs_of_step: int) -> Tensor:
        """Loss of a micro-batch over the pairs of its update; what is measured is averaged over the whole step."""
        loss, measured = self._loss(groups, pairs)
        for name, values in measured.items():
            self._sums[name] = self._sums.get(name, 0.0) + values.double().sum().item() / pairs_of_step
        return loss

    def _loss(self, groups: CompletionGroups, pairs: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss over `pairs`, and what is measured of each pair. [P]."""
        groups = groups.to(next(self.policy.parameters()).device)
        logprobs, entropy = completion_logprobs(self.policy, groups, temperature=1.0, layout=self.layout)
        mask = groups.response_mask
        sums, ref_sums = masked_sum(logprobs, mask, dim=-1), masked_sum(self.reference(groups), mask, dim=-1)
        four = (sums[:, CHOSEN], sums[:, REJECTED], ref_sums[:, CHOSEN], ref_sums[:, REJECTED])
        beta, smoothing = self.settings.dpo.beta, self.settings.dpo.label_smoothing
        loss = (
            ipo_loss(*four, beta, pairs)
            if self.settings.surrogate == "ipo"
            else dpo_loss(*four, beta, smoothing, pairs)
        )
        rewards = implicit_rewards(sums.detach(), ref_sums, beta)
        margin = rewards[:, CHOSEN] - rewards[:, REJECTED]
        return loss, {
            "loss": (loss.detach() * pairs / len(margin)).expand(len(margin)),
            "accuracy": (margin > 0).double() + 0.5 * (margin == 0).double(),
            "margin/mean": margin,
            "reward/chosen_mean": rewards[:, CHOSEN],
            "reward/rejected_mean": rewards[:, REJECTED],
            "logprob/chosen_mean": sums.detach()[:, CHOSEN],
            "logprob/rejected_mean": sums.detach()[:, REJECTED],
            "completion/length_mean": mask.sum(-1).double().mean(-1),
            "entropy": entropy.sum((-1, -2)).double() / 2,
        }

    def metrics(self) -> Mapping[str, float]:
        names = sorted(self._names())
        sums = self.processes.sum(torch.tensor([self._sums.get(name, 0.0) for name in names], dtype=torch.float64))
        found = dict(zip(names, sums.tolist(), strict=True))
        found["policy/entropy"] = found.pop("entropy") / found["completion/length_mean"]  # each token weighs the same
        return found

    def _names(self) -> set[str]:
        """A process may have had no pair at all."""
        return set(self.processes.gather(sorted(self._sums)))

    @torch.no_grad()
    def evaluate(self, step: int) -> Mapping[str, float]:
        """The policy's own completions, and loss and accuracy on held-out pairs."""
        sums: dict[str, float] = {}
        for batch in self.validation.all() if len(self.validation) else []:
            for name, values in self._loss(batch, len(self.validation))[1].items():
                if name in ("loss", "accuracy"):
                    key = f"validation/{name}"
                    sums[key] = sums.get(key, 0.0) + values.double().sum().item() / len(self.validation)
        return {**sums, **self.monitor()}
