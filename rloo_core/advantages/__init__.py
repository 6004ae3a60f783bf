"""Advantages: how much better a completion did than expected.

`groups` compares the completions of one prompt (or batch) with each other, `running_mean` with the past, `token_level`
with a learned value function. `overlong` is the one reward that depends on length alone.
"""

from rloo_core.advantages.groups import (
    batch_leave_one_out,
    best_of_group,
    equal_reward_groups,
    group_mean,
    group_standardised,
    leave_one_out,
)
from rloo_core.advantages.overlong import soft_overlong_penalty
from rloo_core.advantages.running_mean import RunningMean
from rloo_core.advantages.token_level import generalized_advantages, token_rewards, whiten

__all__ = [
    "RunningMean",
    "batch_leave_one_out",
    "best_of_group",
    "equal_reward_groups",
    "generalized_advantages",
    "group_mean",
    "group_standardised",
    "leave_one_out",
    "soft_overlong_penalty",
    "token_rewards",
    "whiten",
]
