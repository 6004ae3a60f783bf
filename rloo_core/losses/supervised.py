"""Negative log-likelihood of demonstrations."""

from torch import Tensor

from rloo_core.masking import masked_sum


def completion_nll(logprobs: Tensor, response_mask: Tensor, denominator: int) -> Tensor:
    """Negative log-likelihood of completion tokens, prompts left out.

    Args:
        logprobs: Log-probs of the demonstrated tokens. Shape [..., T].
        response_mask: True at completion tokens, EOS included. Shape [..., T].
        denominator: Completion tokens of the whole step over all micro-batches and processes.

    Returns:
        Scalar, nats a token.
    """
    return -masked_sum(logprobs, response_mask) / denominator
