"""Losses that learn from preference pairs directly, without a reward model.

Log-probs are *sums* over a completion's tokens, [P], one a pair: both papers derive their losses for log pi(y | x) of
whole completions. For IPO, TRL 1.16 takes means over tokens, as IPO's authors did in their experiments, so that the
margin asked for does not depend on length; who wants that passes means, policy and reference alike, and a larger beta.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def implicit_rewards(logprobs: Tensor, ref_logprobs: Tensor, beta: float) -> Tensor:
    """beta * (log pi(y) - log pi_ref(y)): the reward, up to a constant of the prompt, whose optimum the policy is.

    Args:
        logprobs: Of completions, under the policy. Shape [P].
        ref_logprobs: The same under the reference policy. Shape [P].
        beta: Strength of the KL constraint, reward units per nat.

    Returns:
        Shape [P], reward units, without gradient.

    References:
        Rafailov et al. 2023, Eq. 5, https://arxiv.org/abs/2305.18290
    """
    return beta * (logprobs - ref_logprobs).detach()


def dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    beta: float,
    label_smoothing: float,
    denominator: float,
) -> Tensor:
    """Bradley-Terry loss of the implicit rewards, with labels that are wrong now and then.

        margin = beta * (log-ratio of chosen - log-ratio of rejected)
        -1/N * sum of (1 - s) * log sigmoid(margin) + s * log sigmoid(-margin)

    With smoothing s > 0 (conservative DPO) the best margin is finite, log((1 - s) / s); with 0 it is infinite.

    Args:
        chosen_logprobs: Of the preferred completions, summed over tokens, under the policy. Shape [P].
        rejected_logprobs: Of the other ones. Shape [P].
        ref_chosen_logprobs: Under the reference policy. Shape [P].
        ref_rejected_logprobs: Under the reference policy. Shape [P].
        beta: Strength of the KL constraint, reward units per nat.
        label_smoothing: s, the probability that a label is wrong; 0 to below 0.5.
        denominator: N, pairs of the whole step over all micro-batches and processes.

    Returns:
        Scalar, nats a pair.

    References:
        Rafailov et al. 2023, Eq. 7, https://arxiv.org/abs/2305.18290
        Mitchell 2023 (conservative DPO), https://ericmitchell.ai/cdpo.pdf
    """
    margin = beta * _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    terms = (1 - label_smoothing) * logsigmoid(margin) + label_smoothing * logsigmoid(-margin)
    return -terms.sum() / denominator


def ipo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    beta: float,
    denominator: float,
) -> Tensor:
    """Squared distance of the log-ratio margin from 1 / (2 beta): preferences that are certain do not drive it away.

        1/N * sum of (log-ratio of chosen - log-ratio of rejected - 1/(2 beta))^2

    Args:
        chosen_logprobs: As for `dpo_loss`; see the top of this module for sums and means. Shape [P].
        rejected_logprobs: Shape [P].
        ref_chosen_logprobs: Shape [P].
        ref_rejected_logprobs: Shape [P].
        beta: Strength of the regularisation, the paper's tau; above 0.
        denominator: N, pairs of the whole step over all micro-batches and processes.

    Returns:
        Scalar, squared nats a pair.

    References:
        Azar et al. 2023, Eq. 17, https://arxiv.org/abs/2310.12036
    """
    margin = _margin(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    return (margin - 1 / (2 * beta)).square().sum() / denominator


def _margin(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    return (chosen - ref_chosen) - (rejected - ref_rejected)
