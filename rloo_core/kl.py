"""Estimates of KL(policy || reference) from sampled tokens. Reference: http://joschu.net/blog/kl-approx.html"""

from torch import Tensor

from rloo_core.masking import masked_sum


def sequence_kl_k1(logprobs: Tensor, ref_logprobs: Tensor, response_mask: Tensor) -> Tensor:
    """The sampled sequence log-ratio, sum over t of log pi(y_t) - log pi_ref(y_t), in nats.

    Unbiased for KL(pi || pi_ref) over completions sampled from pi; a single value may be negative. This is the KL of
    the paper's shaped reward (Ahmadian et al. 2024, Eq. 3).

    Args:
        logprobs: Log-probs of the sampled tokens under the policy. Shape [..., T].
        ref_logprobs: The same under the reference policy. Shape [..., T].
        response_mask: True where the policy chose the token. Shape [..., T].

    Returns:
        Shape [...].
    """
    return masked_sum(logprobs - ref_logprobs, response_mask, dim=-1)


def sequence_kl_k3(logprobs: Tensor, ref_logprobs: Tensor, response_mask: Tensor) -> Tensor:
    """Sum over t of exp(-d_t) - 1 + d_t with d_t = log pi(y_t) - log pi_ref(y_t), in nats; never negative.

    Args and returns as `sequence_kl_k1`.
    """
    log_ratio = logprobs - ref_logprobs
    return masked_sum((-log_ratio).expm1() + log_ratio, response_mask, dim=-1)


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
