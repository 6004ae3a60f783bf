"""From the reward of a completion to the score that training sees: clipping, and what a missing EOS costs."""

from typing import Literal

from torch import Tensor


def clip_rewards(rewards: Tensor, bound: float | None) -> Tensor:
    """Rewards within [-bound, bound]; before KL and baseline, so that a bound on the reward is one on nothing else.

    Args:
        rewards: Raw rewards. Any shape.
        bound: Reward units; None leaves them as they are.
    """
    return rewards if bound is None else rewards.clamp(-bound, bound)


def charge_missing_eos(
    rewards: Tensor, finished: Tensor, penalty: float | None, rule: Literal["subtract", "replace"]
) -> Tensor:
    """What a completion is worth that was cut off instead of ending with EOS.

    Args:
        rewards: Rewards of completions. Shape [P, K].
        finished: True where a completion ends with EOS. Shape [P, K].
        penalty: Reward units, positive for a punishment; None charges nothing.
        rule: "subtract" takes the penalty off the reward; "replace" puts -penalty in the reward's place.

    Returns:
        Shape [P, K]; finished completions as they were.
    """
    if penalty is None:
        return rewards
    charged = rewards - penalty if rule == "subtract" else rewards.new_full(rewards.shape, -penalty)
    return rewards.where(finished, charged)
