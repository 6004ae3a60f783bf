"""What an update needs to know of completions: shaped rewards, advantages, returns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rloo_core.advantages import generalized_advantages, token_rewards
from rloo_core.algorithms.collecting import Rollout
from rloo_core.kl import kl_per_token, kl_shaped_rewards, sequence_kl
from rloo_core.losses.policy_gradient import LOG_RATIO_LIMIT
from rloo_core.masking import masked_sum
from rloo_core.settings import AlgorithmSettings


class Pass(NamedTuple):
    """A forward pass over some prompts' completions. All [P, K, T]; values are None without a critic."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None


@dataclass(frozen=True)
class Estimates:
    """What the models say of completions, without gradient.

    Attributes:
        logprobs: Of the tokens, under the policy that sampled them, computed as training computes them. [P, K, T].
        entropy: Of the distributions the tokens were drawn from, nats. [P, K, T].
        ref_logprobs: Under the reference; None where it is not needed. [P, K, T].
        values: The critic's; None without one. [P, K, T].
    """

    logprobs: Tensor
    entropy: Tensor
    ref_logprobs: Tensor | None
    values: Tensor | None


@dataclass(frozen=True)
class Experience:
    """Estimates and what follows from them; constants for the updates.

    Attributes:
        shaped: Shaped reward of each completion; the score itself where KL acts in the loss. [P, K].
        advantages: [P, K], or [P, K, T] where tokens are the actions. 0 where a completion cannot be scored.
        returns: What the critic should have said; None without one. [P, K, T].
    """

    estimates: Estimates
    shaped: Tensor
    advantages: Tensor
    returns: Tensor | None

    def select(self, rows: list[int], width: int) -> "Experience":
        """Some of its prompts, cut to a number of completion tokens."""
        return self._each(lambda values: values[rows][..., :width] if values.ndim == 3 else values[rows])

    def to(self, device: torch.device) -> "Experience":
        return self._each(lambda values: values.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Experience":
        def changed(values: Tensor | None) -> Tensor | None:
            return None if values is None else change(values)

        known = self.estimates
        estimates = Estimates(
            change(known.logprobs), change(known.entropy), changed(known.ref_logprobs), changed(known.values)
        )
        return Experience(estimates, change(self.shaped), change(self.advantages), changed(self.returns))


def corrected_for_the_sampler(experience: Experience, rollout: Rollout, cap: float) -> Experience:
    """Advantages times min(pi / pi_sampler, cap) of their completion, where rounded weights have written it.

    Uncapped, the expected gradient is that of completions the policy itself has written; a cap trades bias for
    variance. The policy is the one in training as it was then.

    References:
        Ionides 2008, Truncated importance sampling, https://doi.org/10.1198/106186008X320456
    """
    assert rollout.sampled is not None, "what was sampled from the weights in training needs no correction"
    own = masked_sum(experience.estimates.logprobs, rollout.groups.response_mask, dim=-1)
    weights = (own - rollout.sampled).clamp(max=LOG_RATIO_LIMIT).exp().clamp(max=cap)
    tokens = experience.advantages.ndim == 3
    return replace(experience, advantages=experience.advantages * (weights[..., None] if tokens else weights))


def shaped_rewards(rollout: Rollout, estimates: Estimates, settings: AlgorithmSettings, kl_coef: float) -> Tensor:
    """Score - kl_coef * sampled sequence log-ratio, or the score alone where KL acts in the loss. Shape [P, K]."""
    if estimates.ref_logprobs is None or settings.kl.place == "loss":
        return rollout.scores
    kl = sequence_kl(estimates.logprobs, estimates.ref_logprobs, rollout.groups.response_mask, "k1")
    return kl_shaped_rewards(rollout.scores, kl, kl_coef)


def token_advantages(
    rollout: Rollout, estimates: Estimates, settings: AlgorithmSettings, kl_coef: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and returns of each token, 0 where a completion cannot be scored. Both [P, K, T]."""
    assert estimates.values is not None, "advantages of tokens need a critic"
    mask = rollout.groups.response_mask
    if estimates.ref_logprobs is None or settings.kl.place == "loss":
        kl = torch.zeros_like(estimates.logprobs)
    else:
        kl = kl_per_token(estimates.logprobs, estimates.ref_logprobs, "k1", mask)
    rewards = token_rewards(rollout.scores, kl, kl_coef, mask)
    advantages, returns = generalized_advantages(rewards, estimates.values, mask, settings.gae_lambda)
    unknown = ~rollout.scorable[..., None]
    return advantages.masked_fill(unknown, 0.0), returns.masked_fill(unknown, 0.0)
