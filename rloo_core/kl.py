"""Estimates of KL(policy || reference) from sampled tokens. Reference: http://joschu.net/blog/kl-approx.html

With d = log pi(y_t) - log pi_ref(y_t), for y_t sampled from the policy:

| name | value | mean over samples | gradient of the mean, as a loss term |
|---|---|---|---|
| k1 | d | KL(pi ‖ pi_ref) | 0: as a loss it teaches nothing; detached in the reward it gives grad KL(pi ‖ pi_ref) |
| k2 | d²/2 | KL to second order in d | grad KL(pi ‖ pi_ref) of the next token |
| k3 | e^-d - 1 + d | KL(pi ‖ pi_ref) | grad KL(pi_ref ‖ pi) of the next token |

k2 and k3 as loss terms leave out how the policy changes which prefixes are reached.
"""

import math
from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]


def kl_per_token(
    logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator, response_mask: Tensor | None = None
) -> Tensor:
    """Estimate of the KL at each sampled token, in nats; differentiable, exactly 0 where both log-probs are equal.

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        ref_logprobs: The same under the reference policy. Shape [..., T].
        estimator: "k1", "k2" or "k3"; see the top of this module.
        response_mask: True where the policy chose the token. Where given, padding has KL and gradient 0, whatever
            stands there. Shape [..., T].

    Returns:
        Shape [..., T], float32 or wider.

    Raises:
        ValueError: If there is no estimator of that name.
    """
    log_ratio = _at_least_float32(logprobs) - _at_least_float32(ref_logprobs)
    if response_mask is not None:
        log_ratio = log_ratio.masked_fill(~response_mask, 0.0)
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    if estimator == "k3":
        return (-log_ratio).expm1() + log_ratio
    raise ValueError(f"`kl_estimator` is one of k1, k2, k3; got {estimator!r}")


def sequence_kl(logprobs: Tensor, ref_logprobs: Tensor, response_mask: Tensor, estimator: KlEstimator) -> Tensor:
    """Sum over a completion's tokens of the per-token estimate, in nats.

    "k1" gives the sampled sequence log-ratio, the KL of the paper's shaped reward (Ahmadian et al. 2024, Eq. 3):
    unbiased for KL(pi || pi_ref) over completions sampled from pi; a single value may be negative.

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        ref_logprobs: The same under the reference policy. Shape [..., T].
        response_mask: True where the policy chose the token. Shape [..., T].
        estimator: "k1", "k2" or "k3".

    Returns:
        Shape [...].
    """
    return kl_per_token(logprobs, ref_logprobs, estimator, response_mask).sum(-1)


def kl_shaped_rewards(rewards: Tensor, kl: Tensor, kl_coef: float) -> Tensor:
    """R = r - kl_coef * KL, the reward every online method of the paper shares (Ahmadian et al. 2024, Eq. 3).

    The result carries no gradient: the KL term acts through the score function, not through the reward.

    Args:
        rewards: Reward of each completion. Shape [P, K].
        kl: Sequence KL of each completion, nats. Shape [P, K].
        kl_coef: Weight of the KL, reward units per nat.

    Returns:
        Shape [P, K].
    """
    return (rewards - kl_coef * kl).detach()


def adapted_kl_coef(kl_coef: float, kl_mean: float, target: float, horizon: float, completions: int) -> float:
    """The KL coefficient after a step, moved towards what keeps the measured KL at a target.

        error = clip(kl_mean / target - 1, -0.2, 0.2)
        new = kl_coef * (1 + error * completions / horizon)

    Args:
        kl_coef: Weight of the KL during the step, reward units per nat.
        kl_mean: Mean sequence KL measured in the step, nats.
        target: Wanted sequence KL, nats; above 0.
        horizon: Completions over which a steady error of 1 would double the coefficient.
        completions: Completions of the step.

    Returns:
        Above 0 if `kl_coef` is.

    Raises:
        ValueError: If the target is not above 0, the horizon so short that a step could turn the sign, or the measured
            KL not finite.

    References:
        Ziegler et al. 2019, section 2.2, https://arxiv.org/abs/1909.08593
    """
    if target <= 0 or horizon <= 0.2 * completions:
        raise ValueError(
            f"an adaptive KL coefficient needs `kl_target` > 0 nats and `kl_horizon` > 0.2 * the {completions} "
            f"completions of a step; got kl_target={target} and kl_horizon={horizon}"
        )
    if not math.isfinite(kl_mean):
        raise ValueError(f"the measured KL must be finite to adapt `kl_coef` to it; got {kl_mean}")
    error = min(max(kl_mean / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * completions / horizon)


def _at_least_float32(values: Tensor) -> Tensor:
    """Half-precision log-probs differ by less than their own rounding."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
