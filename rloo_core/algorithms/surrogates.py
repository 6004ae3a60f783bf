"""The loss whose gradient an update follows, composed from an algorithm's choices and switches."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rloo_core.algorithms.experience import Experience
from rloo_core.kl import kl_per_token
from rloo_core.losses.aggregation import aggregate
from rloo_core.losses.policy_gradient import (
    clip_fraction,
    clipped_terms,
    corrected_terms,
    importance_ratio,
    reinforce_loss,
    reinforce_terms,
)
from rloo_core.losses.value import value_loss
from rloo_core.settings import AlgorithmSettings


@dataclass(frozen=True)
class Denominators:
    """What the losses of an update are divided by, over all micro-batches and processes."""

    prompts: int
    completions: int
    tokens: int


@dataclass(frozen=True)
class RatioStatistics:
    """Importance ratios of a micro-batch, one a token or one a completion, and where the clip binds. Both [N]."""

    ratios: Tensor
    clipped: Tensor


def policy_loss(
    settings: AlgorithmSettings,
    logprobs: Tensor,
    experience: Experience,
    mask: Tensor,
    over: Denominators,
    max_length: int,
) -> tuple[Tensor, RatioStatistics | None]:
    """Loss of a micro-batch without its KL term.

    Args:
        settings: Surrogate, ratio, clip, aggregation.
        logprobs: Under the policy as it is now, with gradient. Shape [P, K, T].
        experience: Advantages, and log-probs at sampling.
        mask: True at tokens that count. Shape [P, K, T].
        over: Denominators of the update.
        max_length: Tokens a completion may have.

    Returns:
        Scalar, and the ratios where there are any.
    """
    advantages = experience.advantages
    if settings.surrogate == "nll":
        return reinforce_loss(logprobs, advantages, mask, over.prompts), None
    if settings.ratio == "none":
        return _aggregated(settings, reinforce_terms(logprobs, advantages), mask, over, max_length), None
    ratio = importance_ratio(logprobs, experience.estimates.logprobs, mask, settings.ratio)
    low, high = clip_bounds(settings)
    if low is None:
        terms = corrected_terms(logprobs, ratio, advantages, settings.ratio_cap)
    else:
        terms = clipped_terms(ratio, advantages, low, high)
    valid = mask if ratio.ndim == mask.ndim else mask.any(-1)
    binds = clip_fraction(ratio, advantages, low, high)
    statistics = RatioStatistics(ratio.detach()[valid], binds[valid])
    return _aggregated(settings, terms, mask, over, max_length), statistics


def clip_bounds(settings: AlgorithmSettings) -> tuple[float | None, float | None]:
    """How far below and above 1 a ratio may count."""
    return settings.clip, settings.clip if settings.clip_high is None else settings.clip_high


def kl_loss(
    settings: AlgorithmSettings,
    kl_coef: float,
    logprobs: Tensor,
    ref_logprobs: Tensor | None,
    mask: Tensor,
    over: Denominators,
    max_length: int,
) -> Tensor:
    """kl_coef * KL of a micro-batch, where KL acts in the loss; 0 elsewhere."""
    if ref_logprobs is None or settings.kl.place != "loss":
        return torch.zeros((), device=logprobs.device)
    terms = kl_per_token(logprobs, ref_logprobs, settings.kl.estimator, mask)
    return kl_coef * _aggregated(settings, terms, mask, over, max_length)


def critic_loss(
    settings: AlgorithmSettings, values: Tensor, experience: Experience, mask: Tensor, over: Denominators
) -> Tensor:
    """Half the squared distance of the values from the returns, averaged over tokens."""
    old_values, returns = experience.estimates.values, experience.returns
    assert old_values is not None
    assert returns is not None
    return value_loss(values, old_values, returns, mask, settings.critic.value_clip, over.tokens)


def _aggregated(
    settings: AlgorithmSettings, terms: Tensor, mask: Tensor, over: Denominators, max_length: int
) -> Tensor:
    denominator = over.tokens if settings.loss_agg == "token_mean" else over.completions
    return aggregate(terms, mask, settings.loss_agg, denominator, max_length)
