"""RLOO: REINFORCE with a leave-one-out baseline (Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rloo_core.advantages import leave_one_out
from rloo_core.batching import step_indices, token_budget_batches
from rloo_core.kl import kl_shaped_rewards, sequence_kl_k1, sequence_kl_k3
from rloo_core.layout import Layout
from rloo_core.logprobs import completion_logprobs
from rloo_core.losses.policy_gradient import reinforce_loss
from rloo_core.rewards import Reward, Row
from rloo_core.rollout import Sampling, finished, sample_completions, uniform_numbers
from rloo_core.trainer import Method, Update
from rloo_core.types import CompletionGroups, Ids

ReferenceLogprobs = Callable[[CompletionGroups], Tensor]
"""Log-probs [P, K, T] of completions under the reference policy, without gradient."""


@dataclass
class Rloo(Method):
    """One strictly on-policy step: sample K completions a prompt, score them, update once with the whole batch.

    Because nothing is updated between sampling and the update, the update's own forward pass gives the log-probs of the
    KL-shaped reward: there is no separate pass for them, and no importance ratio.

    Attributes:
        policy: The model in training.
        reference: Log-probs under its frozen start; None when `kl_coef` is 0.
        reward: What a completion is worth, before KL.
        prompts: Token ids of the training prompts.
        rows: Their rows of the prompts table.
        sampling: Temperature, length, special tokens, batch budget.
        prompts_per_step: P.
        group_size: K, at least 2.
        kl_coef: Weight of the KL in the reward, reward units per nat.
        missing_eos_penalty: Subtracted from the reward of a completion that was cut off; reward units.
        seed: The stage's seed.
        layout: Whether completions share their prompt's computation.
        monitor: Held-out metrics after some steps.
    """

    policy: nn.Module
    reference: ReferenceLogprobs | None
    reward: Reward
    prompts: Sequence[Ids]
    rows: Sequence[Row]
    sampling: Sampling
    prompts_per_step: int
    group_size: int
    kl_coef: float
    missing_eos_penalty: float
    seed: int
    layout: Layout
    monitor: Callable[[], Mapping[str, float]]
    _parts: list[dict[str, Tensor]] = field(default_factory=list, init=False)

    def updates(self, step: int) -> Iterator[Update]:
        groups, rewards = self.rollout(step)
        batches = token_budget_batches(groups.row_lengths().tolist(), self.sampling.max_tokens, self.group_size)
        completions = rewards.numel()
        self._parts = []
        yield [lambda b=batch: self._micro_loss(groups.select(b), rewards[b], completions) for batch in batches]  # type: ignore[misc]

    def rollout(self, step: int) -> tuple[CompletionGroups, Tensor]:
        """Completions of one step and their rewards [P, K], before KL."""
        chosen = step_indices(step, self.prompts_per_step, len(self.prompts), self.seed, "prompts")
        keys = [(step, place, k) for place in range(len(chosen)) for k in range(self.group_size)]
        uniform = uniform_numbers(self.seed, "sampling", keys, self.sampling.max_new_tokens)
        groups = sample_completions(
            self.policy, [self.prompts[i] for i in chosen], self.group_size, self.sampling, uniform
        )
        rewards = self.reward(groups, [self.rows[i] for i in chosen])
        return groups, rewards - self.missing_eos_penalty * (~finished(groups, self.sampling.eos_ids))

    def _micro_loss(self, groups: CompletionGroups, rewards: Tensor, completions: int) -> Tensor:
        device = next(self.policy.parameters()).device
        groups, rewards = groups.to(device), rewards.to(device)
        mask = groups.response_mask
        logprobs, entropy = completion_logprobs(
            self.policy, groups, temperature=self.sampling.temperature, layout=self.layout
        )
        ref_logprobs = self.reference(groups) if self.reference else logprobs.detach()
        kl = sequence_kl_k1(logprobs.detach(), ref_logprobs, mask)
        shaped = kl_shaped_rewards(rewards, kl, self.kl_coef)
        advantages = leave_one_out(shaped)
        loss = reinforce_loss(logprobs, advantages, mask, completions)
        part = {"reward": rewards, "shaped_reward": shaped, "advantage": advantages, "length": mask.sum(-1).float()}
        part["finished"] = finished(groups, self.sampling.eos_ids).float()
        part["entropy"] = entropy.sum(-1)
        if self.reference:
            part |= {"kl": kl, "kl_k3": sequence_kl_k3(logprobs.detach(), ref_logprobs, mask)}
        self._parts.append({name: value.detach() for name, value in part.items()})
        return loss

    def metrics(self) -> Mapping[str, float]:
        values: dict[str, Any] = {name: torch.cat([part[name] for part in self._parts]) for name in self._parts[0]}
        group_std = values["reward"].std(dim=1)
        result = {
            "reward/mean": values["reward"].mean(),
            "reward/std": values["reward"].std(),
            "reward/group_std": group_std.mean(),
            "reward/zero_std_frac": (values["reward"].amax(1) == values["reward"].amin(1)).float().mean(),
            "shaped_reward/mean": values["shaped_reward"].mean(),
            "advantage/std": values["advantage"].std(),
            "completion/length_mean": values["length"].mean(),
            "completion/truncated_frac": 1 - values["finished"].mean(),
            "policy/entropy": values["entropy"].sum() / values["length"].sum(),
        }
        if "kl" in values:
            result |= {"kl/mean": values["kl"].mean(), "kl/k3_mean": values["kl_k3"].mean()}
        return {name: value.item() for name, value in result.items()}

    def evaluate(self, step: int) -> Mapping[str, float]:
        return self.monitor()
