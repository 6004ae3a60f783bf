"""How the terms of a step become one number.

Every denominator is counted over the whole step, all micro-batches and processes: the parts of a step then add up to
the same loss and gradient however it is split, and a part without a valid token adds 0.
"""

from typing import Literal

from torch import Tensor

from rloo_core.masking import masked_sum

LossAggregation = Literal["sequence_sum", "sequence_mean", "token_mean", "fixed_length"]


def aggregate(
    terms: Tensor,
    response_mask: Tensor,
    how: LossAggregation,
    denominator: float,
    max_length: int | None = None,
) -> Tensor:
    """Add up the terms of a (part of a) step.

        sequence_sum:   sum over tokens / N                        the policy gradient of whole completions
        sequence_mean:  sum over completions of token means / N    GRPO; tokens of long completions weigh less
        token_mean:     sum over tokens / tokens of the step       DAPO; each token weighs the same
        fixed_length:   sum over tokens / (L * N)                  Dr. GRPO; sequence_sum up to a constant

    Args:
        terms: Loss of each token, shape [..., T]; or of each completion, shape [...], where the completion as a whole
            is the action (sequence ratios): it then counts once, and only sequence_sum and sequence_mean, which are
            the same there, make sense.
        response_mask: True where the policy chose the token. Shape [..., T].
        how: "sequence_sum", "sequence_mean", "token_mean" or "fixed_length".
        denominator: Of the whole step: N completions (RAFT: prompts), or its valid tokens for token_mean. Below 1,
            that is, in a step without any, it counts as 1.
        max_length: L, tokens a completion may have; for fixed_length only.

    Returns:
        Scalar.

    Raises:
        ValueError: If there is no aggregation of that name, `fixed_length` is without `max_length`, or terms of whole
            completions meet an aggregation over tokens.

    References:
        Liu et al. 2025 (Dr. GRPO), https://arxiv.org/abs/2503.20783
        Yu et al. 2025 (DAPO), https://arxiv.org/abs/2503.14476
    """
    denominator = max(denominator, 1)
    if terms.ndim == response_mask.ndim - 1:
        if how not in ("sequence_sum", "sequence_mean"):
            raise ValueError(
                f"one term a completion (a sequence-level ratio) has no tokens to average over; got loss_agg={how}. "
                f"Set loss_agg to sequence_mean or sequence_sum, or the ratio to token."
            )
        return masked_sum(terms, response_mask.any(-1)) / denominator
    if how == "sequence_mean":
        lengths = response_mask.sum(-1).clamp(min=1)
        return (masked_sum(terms, response_mask, dim=-1) / lengths).sum() / denominator
    if how in ("sequence_sum", "token_mean"):
        return masked_sum(terms, response_mask) / denominator
    if how != "fixed_length":
        raise ValueError(f"`loss_agg` is one of sequence_sum, sequence_mean, token_mean, fixed_length; got {how!r}")
    if max_length is None or max_length < 1:
        raise ValueError(f"loss_agg=fixed_length divides by the length limit (`max_new_tokens`); got {max_length}")
    return masked_sum(terms, response_mask) / (max_length * denominator)
