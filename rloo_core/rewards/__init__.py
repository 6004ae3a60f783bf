"""What a completion is worth: reward models, Python functions, and weighted sums of them behind one interface."""

from rloo_core.rewards.base import Reward, Row
from rloo_core.rewards.combined import CombinedReward, Term, term_names
from rloo_core.rewards.function import FunctionReward, RewardFunction
from rloo_core.rewards.model import ModelReward, ReencodedReward

__all__ = [
    "CombinedReward",
    "FunctionReward",
    "ModelReward",
    "ReencodedReward",
    "Reward",
    "RewardFunction",
    "Row",
    "Term",
    "term_names",
]
