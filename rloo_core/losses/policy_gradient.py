"""Policy-gradient surrogates: the methods differ in the advantages, the ratio and what is done with it.

`reinforce_loss` is the sequence-level sum in one call. The others yield terms that `aggregation.aggregate` adds up.
Advantages may have one value a completion, [...], or one a token, [..., T]. No gradient flows into them.
"""

from typing import Literal

import torch
from torch import Tensor

from rloo_core.masking import masked_sum

RatioLevel = Literal["token", "sequence", "sequence_mean"]

LOG_RATIO_LIMIT = 40.0
"""Log-ratios are cut here, in nats, so that a ratio stays finite in float32 and never makes 0 * infinity."""


def reinforce_loss(logprobs: Tensor, advantages: Tensor, response_mask: Tensor, denominator: int) -> Tensor:
    """Surrogate whose gradient is the policy gradient: -1/N * sum over b of A[b] * log pi(completion b).

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        advantages: One a completion; no gradient flows into them. Shape [...].
        response_mask: True where the policy chose the token. Shape [..., T].
        denominator: N, completions of the whole step over all micro-batches and processes, so that the loss does not
            depend on how the step is split.

    Returns:
        Scalar loss.
    """
    sequence_logprobs = masked_sum(logprobs, response_mask, dim=-1)
    return -(advantages.detach() * sequence_logprobs).sum() / denominator


def reinforce_terms(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """-A * log pi at each token: summed over tokens and averaged over completions they are `reinforce_loss`.

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        advantages: Shape [...] or [..., T].

    Returns:
        Shape [..., T].
    """
    return -_over_tokens(advantages.detach(), logprobs.ndim) * logprobs


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, response_mask: Tensor, level: RatioLevel) -> Tensor:
    """How much likelier the policy makes what the behaviour policy sampled; differentiable.

        token:          pi(y_t) / pi_old(y_t)                     each token its own
        sequence:       product over t of the token ratios        unbiased, of large variance
        sequence_mean:  the T-th root of that product             GSPO; T counts valid tokens

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        old_logprobs: The same under the policy that sampled; no gradient flows into it. Shape [..., T].
        response_mask: True where the policy chose the token. Shape [..., T].
        level: "token", "sequence" or "sequence_mean".

    Returns:
        Shape [..., T] for "token", 1 at padding; [...] for the others. Within exp(-40) to exp(40).

    Raises:
        ValueError: If there is no level of that name.

    References:
        Zheng et al. 2025 (GSPO), https://arxiv.org/abs/2507.18071
    """
    log_ratio = (logprobs - old_logprobs.detach()).masked_fill(~response_mask, 0.0)
    if level == "sequence":
        log_ratio = log_ratio.sum(-1)
    elif level == "sequence_mean":
        log_ratio = log_ratio.sum(-1) / response_mask.sum(-1).clamp(min=1)
    elif level != "token":
        raise ValueError(f"the importance ratio is one of token, sequence, sequence_mean; got {level!r}")
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def corrected_terms(logprobs: Tensor, ratio: Tensor, advantages: Tensor, cap: float | None) -> Tensor:
    """REINFORCE terms of completions another policy sampled: -min(ratio, cap) * A * log pi at each token.

    The ratio is a weight here, without gradient. With the untruncated sequence ratio the expected gradient is the
    on-policy one; a cap trades bias for variance.

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        ratio: From `importance_ratio`. Shape [...] or [..., T].
        advantages: Shape [...] or [..., T].
        cap: Largest weight; None truncates nothing.

    Returns:
        Shape [..., T].

    References:
        Ionides 2008, Truncated importance sampling, https://doi.org/10.1198/106186008X320456
    """
    weights = ratio if cap is None else ratio.clamp(max=cap)
    return reinforce_terms(logprobs, _over_tokens(weights, logprobs.ndim) * _over_tokens(advantages, logprobs.ndim))


def clipped_terms(ratio: Tensor, advantages: Tensor, clip_low: float | None, clip_high: float | None) -> Tensor:
    """PPO's pessimistic objective, negated: -min(A * ratio, A * clamp(ratio, 1 - clip_low, 1 + clip_high)).

    Once a ratio has moved past its bound in the direction the advantage asks for, the term has no gradient. At ratio 1,
    the first update, the gradient is that of `reinforce_terms`. DAPO's clip-higher is clip_high > clip_low.

    Args:
        ratio: From `importance_ratio`, with gradient. Shape [..., T], or [...] for the sequence kinds.
        advantages: Shape [..., T] or [...]; one a completion is used for each of its tokens.
        clip_low: How far below 1 a ratio may count; None does not clip below.
        clip_high: How far above 1 a ratio may count; None does not clip above.

    Returns:
        One term for each ratio and advantage: shape [...] if both are, otherwise [..., T].

    References:
        Schulman et al. 2017, Eq. 7, https://arxiv.org/abs/1707.06347
        Yu et al. 2025 (DAPO), https://arxiv.org/abs/2503.14476
    """
    ratio, advantages = _aligned(ratio, advantages.detach())
    low = None if clip_low is None else 1 - clip_low
    high = None if clip_high is None else 1 + clip_high
    clipped = ratio if low is None and high is None else ratio.clamp(low, high)
    return -torch.minimum(advantages * ratio, advantages * clipped)


def clip_fraction(ratio: Tensor, advantages: Tensor, clip_low: float | None, clip_high: float | None) -> Tensor:
    """Where the clip binds, that is, takes the gradient away; its mean over valid terms is `policy/clip_frac`.

    A ratio beyond a bound whose advantage pulls it back is not clipped.

    Args:
        ratio: As for `clipped_terms`.
        advantages: As for `clipped_terms`.
        clip_low: As for `clipped_terms`.
        clip_high: As for `clipped_terms`.

    Returns:
        Bool, the shape of `clipped_terms`.
    """
    ratio, advantages = _aligned(ratio.detach(), advantages.detach())
    low = 0.0 if clip_low is None else 1 - clip_low
    high = torch.inf if clip_high is None else 1 + clip_high
    return ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))


def _aligned(ratio: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    ndim = max(ratio.ndim, advantages.ndim)
    return _over_tokens(ratio, ndim), _over_tokens(advantages, ndim)


def _over_tokens(values: Tensor, ndim: int) -> Tensor:
    """One value a completion, ready to be used for each of its tokens."""
    return values.unsqueeze(-1) if values.ndim == ndim - 1 else values
