"""The critic: what a policy's completion is expected to earn from each token on."""

from typing import Any

from torch import Tensor, nn

from rloo_core.layout import Layout, predicting_states
from rloo_core.logprobs import in_float32
from rloo_core.reward_models import RewardModel
from rloo_core.types import CompletionGroups


class Critic(nn.Module):
    """A reward model's decoder and head, read at the position that *predicts* each token: before it is chosen.

    The value of the state in which token t is chosen must not know token t, otherwise the baseline would depend on the
    action and bias the gradient. The paper's vanilla policy gradient and PPO start it from the reward model.

    Args:
        start: The reward model it starts from (it is taken over, not copied); its offset is kept, so that the last
            values begin near the rewards.
        layout: Whether completions share their prompt's computation; the numbers are the same.
    """

    def __init__(self, start: RewardModel, layout: Layout) -> None:
        super().__init__()
        self.classifier = start.classifier
        self.offset = start.offset
        self.layout = layout

    def forward(self, groups: CompletionGroups) -> Tensor:
        """Values, float32, with gradient, 0 at padding: V = 0 after the end. Shape [P, K, T]."""
        classifier: Any = self.classifier
        states = predicting_states(classifier.base_model, groups, self.layout)
        values = in_float32(classifier.score(states)).squeeze(-1) - self.offset
        return values.masked_fill(~groups.response_mask, 0.0)
