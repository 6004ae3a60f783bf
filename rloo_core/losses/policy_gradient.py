"""REINFORCE surrogate, shared by REINFORCE and RLOO: they differ in the advantages only."""

from torch import Tensor

from rloo_core.masking import masked_sum


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
