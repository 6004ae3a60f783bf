"""Advantages from comparing completions with each other.

Every function takes the rewards [P, K] and, optionally, which of them are scorable (bool [P, K]). An unscorable
completion is in nobody's baseline and has advantage 0; its reward is not looked at and may be NaN. A completion without
scorable siblings has nothing to be compared with: advantage 0. K counts the scorable ones in the formulas.
"""

import torch
from torch import Tensor

from rloo_core.masking import differ_by_rounding_only, masked_deviations

STD_EPSILON = 1e-4
"""Added to a group's std; the value of TRL 1.16, so that both give the same numbers. Reward units."""


def leave_one_out(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Reward of each completion minus the mean reward of its siblings.

        A[p, i] = r[p, i] - 1/(K-1) * sum over j != i of r[p, j]

    The baseline of completion i never sees r[p, i], so subtracting it keeps the policy gradient
    unbiased. The mean over all K does see it, and scales every advantage by (K-1)/K: computed here the other way round,
    as K/(K-1) times the deviation from the mean over all, which is exactly 0 where all rewards are equal.

    Args:
        rewards: Shaped reward of each completion. Shape [P, K], K >= 2.
        scorable: Which of them count; all by default. Shape [P, K].

    Returns:
        Advantages, shape [P, K]; each row sums to zero.

    Raises:
        ValueError: If `rewards` is not [P, K] with K >= 2, or `scorable` has another shape.

    References:
        Kool et al. 2019, https://wouterkool.github.io/publication/buy-4-samples-free-baseline/
        Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740
    """
    scorable = _checked("leave_one_out", rewards, scorable)
    counts = scorable.sum(dim=1, keepdim=True).to(rewards.dtype)  # a quotient of whole numbers would be float32
    return masked_deviations(rewards, scorable, dim=1) * (counts / (counts - 1).clamp(min=1))


def batch_leave_one_out(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Reward of each completion minus the mean reward of all others of the batch, whatever their prompts.

    What REINFORCE with a running mean uses for its first batch, before there is a past.

    Args:
        rewards: Shaped reward of each completion. Shape [P, K], P * K >= 2.
        scorable: Which of them count; all by default. Shape [P, K].

    Returns:
        Advantages, shape [P, K]; they sum to zero.

    Raises:
        ValueError: If there are fewer than two completions.
    """
    if rewards.ndim != 2 or rewards.numel() < 2:
        raise ValueError(
            f"batch_leave_one_out compares a completion with the rest of the batch, so it needs rewards of shape "
            f"[P, K] with P * K >= 2; got {list(rewards.shape)}. Sample more prompts a step (`prompts_per_step`)."
        )
    flat = None if scorable is None else scorable.reshape(1, -1)
    return leave_one_out(rewards.reshape(1, -1), flat).view_as(rewards)


def group_mean(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Reward of each completion minus the mean of its whole group, itself included: (K-1)/K times `leave_one_out`.

    Args:
        rewards: Reward of each completion. Shape [P, K], K >= 2.
        scorable: Which of them count; all by default. Shape [P, K].

    Returns:
        Advantages, shape [P, K]; each row sums to zero.

    Raises:
        ValueError: As `leave_one_out`.

    References:
        Liu et al. 2025 (Dr. GRPO), https://arxiv.org/abs/2503.20783
    """
    return masked_deviations(rewards, _checked("group_mean", rewards, scorable), dim=1)


def group_standardised(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Deviation from the group's mean, divided by the group's std: (r - mean) / (std + 1e-4).

    The division is not a baseline: it weights prompts by how much their rewards differ, so the expected gradient is no
    longer that of the expected reward. The std is the sample std (sum of squares / (K-1)), from centred values, so no
    advantage exceeds (K-1)/sqrt(K) whatever the rewards' scale. Mean, std and the 1e-4 are TRL 1.16's; one deviation:
    where the rewards of a group are one number up to rounding the advantages are exactly 0, and not rounding / 1e-4.

    Args:
        rewards: Reward of each completion. Shape [P, K], K >= 2.
        scorable: Which of them count; all by default. Shape [P, K].

    Returns:
        Advantages, shape [P, K]; each row sums to zero.

    Raises:
        ValueError: As `leave_one_out`.

    References:
        Shao et al. 2024 (GRPO), section 4.1.2, https://arxiv.org/abs/2402.03300
    """
    scorable = _checked("group_standardised", rewards, scorable)
    deviations = masked_deviations(rewards, scorable, dim=1)
    degrees = (scorable.sum(dim=1, keepdim=True) - 1).clamp(min=1)
    std = (deviations.square().sum(dim=1, keepdim=True) / degrees).sqrt()
    equal = differ_by_rounding_only(rewards, scorable, dim=1)[:, None]
    return (deviations / (std + STD_EPSILON)).masked_fill(equal, 0.0)


def best_of_group(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Weight 1 on the best completion of each prompt, 0 on the others: RAFT's choice of what to imitate.

    Args:
        rewards: Shaped reward of each completion. Shape [P, K], K >= 2.
        scorable: Which of them may be chosen; all by default. Shape [P, K].

    Returns:
        Weights, shape [P, K], of the rewards' dtype. Ties go to the lowest index; a prompt without a scorable
        completion has weights 0 only.

    Raises:
        ValueError: As `leave_one_out`.

    References:
        Dong et al. 2023 (RAFT), https://arxiv.org/abs/2304.06767; Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740
    """
    scorable = _checked("best_of_group", rewards, scorable)
    best = rewards.masked_fill(~scorable, -torch.inf).argmax(dim=1, keepdim=True)
    return torch.zeros_like(rewards).scatter(1, best, 1.0) * scorable


def equal_reward_groups(rewards: Tensor, scorable: Tensor | None = None) -> Tensor:
    """Prompts whose scorable completions all have the same reward, up to rounding: nothing to learn from by comparing.

    Meant for raw rewards, before KL or any other shaping, which would make such groups look alive.

    Args:
        rewards: Raw reward of each completion. Shape [P, K].
        scorable: Which of them count; all by default. Shape [P, K].

    Returns:
        Bool, shape [P]; True also where fewer than two completions are scorable.

    References:
        Yu et al. 2025 (DAPO), dynamic sampling, https://arxiv.org/abs/2503.14476
    """
    if scorable is None:
        scorable = torch.ones_like(rewards, dtype=torch.bool)
    return differ_by_rounding_only(rewards, scorable, dim=1)


def _checked(name: str, rewards: Tensor, scorable: Tensor | None) -> Tensor:
    """The mask of scorable completions, once the shapes are known to be right."""
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"{name} compares a completion with its siblings, so it needs rewards of shape [P, K] "
            f"with K >= 2; got {list(rewards.shape)}. Sample more completions a prompt (`group_size`), "
            f"or use a baseline that needs only one."
        )
    if scorable is None:
        return torch.ones_like(rewards, dtype=torch.bool)
    if scorable.shape != rewards.shape or scorable.dtype != torch.bool:
        raise ValueError(
            f"{name} needs `scorable` as bool of the rewards' shape {list(rewards.shape)}; "
            f"got {scorable.dtype} {list(scorable.shape)}"
        )
    return scorable
