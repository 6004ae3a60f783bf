"""Advantages of single tokens: rewards in time, a learned value function, and what is left of their difference."""

import torch
from torch import Tensor

from rloo_core.masking import differ_by_rounding_only, last_true, masked_deviations


def token_rewards(scores: Tensor, kl: Tensor, kl_coef: float, response_mask: Tensor) -> Tensor:
    """The KL-shaped reward spread over the tokens: each pays for its own KL, the last one gets the score.

        r[t] = -kl_coef * kl[t] + (score if t is the last valid token else 0)

    Their sum over a completion is its sequence-level shaped reward. No gradient flows through it.

    Args:
        scores: Reward of each completion, before KL. Shape [...].
        kl: KL of each token (k1), nats; may be anything at padding. Shape [..., T].
        kl_coef: Weight of the KL, reward units per nat.
        response_mask: True where the policy chose the token. Shape [..., T].

    Returns:
        Shape [..., T]; exactly 0 at padding. A completion without any valid token gets nothing.

    References:
        Ahmadian et al. 2024, section 2, https://arxiv.org/abs/2402.14740
    """
    penalties = (-kl_coef * kl).masked_fill(~response_mask, 0.0)
    at_the_end = torch.zeros_like(penalties).where(~last_true(response_mask), scores[..., None].to(penalties.dtype))
    return (penalties + at_the_end).detach()


def generalized_advantages(
    rewards: Tensor, values: Tensor, response_mask: Tensor, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages of tokens by GAE(lambda), undiscounted (gamma = 1).

        delta[t] = r[t] + V[t+1] - V[t]
        A[t] = delta[t] + lambda * A[t+1]

    V[t] is the value of what is there *before* token t is chosen; after the last valid token V and A are 0. With
    lambda = 1 the sum telescopes to the return-to-go minus V[t] (vanilla policy gradient), with lambda = 0 it is delta.
    Positions the mask leaves out are stepped over, as if they were not there.

    Args:
        rewards: Token rewards. Shape [..., T].
        values: Predicted return-to-go, reward units. Shape [..., T].
        response_mask: True where the policy chose the token. Shape [..., T].
        gae_lambda: 0 to 1.

    Returns:
        Advantages and returns (advantage + value, what the value function is trained on), both [..., T], without
        gradient, exactly 0 at padding.

    References:
        Schulman et al. 2016, Eq. 16, https://arxiv.org/abs/1506.02438
    """
    rewards, values = rewards.detach(), values.detach()
    returns = torch.zeros_like(values)
    next_value = torch.zeros_like(values[..., 0])
    next_return = torch.zeros_like(next_value)
    for t in reversed(range(values.shape[-1])):  # A[t] + V[t] of the formulas: with lambda = 1 no value enters it
        valid = response_mask[..., t]
        target = rewards[..., t] + (1 - gae_lambda) * next_value + gae_lambda * next_return
        returns[..., t] = target.masked_fill(~valid, 0.0)
        next_value = values[..., t].where(valid, next_value)
        next_return = target.where(valid, next_return)
    return (returns - values).masked_fill(~response_mask, 0.0), returns


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale what a mask lets through to mean 0 and sample std 1, over the whole batch.

    Unlike `group_standardised` it has one mean and one std for all prompts: prompts keep their weights relative to
    each other. Padding stays exactly 0; values that are equal up to rounding give 0.

    Args:
        advantages: Any shape.
        mask: Bool, same shape.

    Returns:
        Same shape.
    """
    flat, seen = advantages.reshape(-1), mask.reshape(-1)
    deviations = masked_deviations(flat, seen, dim=0)
    std = (deviations.square().sum() / (seen.sum() - 1).clamp(min=1)).sqrt()
    if differ_by_rounding_only(flat, seen, dim=0):
        return torch.zeros_like(advantages)
    return (deviations / std).view_as(advantages)
