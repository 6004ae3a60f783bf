"""Advantages: how much better a completion did than expected."""

from torch import Tensor


def leave_one_out(rewards: Tensor) -> Tensor:
    """Reward of each completion minus the mean reward of its siblings.

        A[p, i] = r[p, i] - 1/(K-1) * sum over j != i of r[p, j]

    The baseline of completion i never sees r[p, i], so subtracting it keeps the policy gradient
    unbiased. The mean over all K does see it, and scales every advantage by (K-1)/K.

    Args:
        rewards: Shaped reward of each completion. Shape [P, K], K >= 2.

    Returns:
        Advantages, shape [P, K]; each row sums to zero.

    Raises:
        ValueError: If `rewards` is not [P, K] with K >= 2.

    References:
        Kool et al. 2019, https://wouterkool.github.io/publication/buy-4-samples-free-baseline/
        Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"leave_one_out compares a completion with its siblings, so it needs rewards of shape [P, K] "
            f"with K >= 2; got {list(rewards.shape)}. Sample more completions a prompt (`group_size`), "
            f"or use a baseline that needs only one."
        )
    group_size = rewards.shape[1]
    siblings = rewards.sum(dim=1, keepdim=True) - rewards
    return rewards - siblings / (group_size - 1)
