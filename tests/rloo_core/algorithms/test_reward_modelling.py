import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.reward_modelling import RewardModelling

PROMPTS = [[7], [7, 8], [9], [8, 8, 8]]
PAIRS = [[[3, 1], [4, 4, 1]], [[3, 3, 3, 1], [4, 1]], [[3, 5, 1], [4, 5, 1]], [[3, 1], [4, 1]]]  # (chosen, rejected)


class FirstToken(nn.Module):
    """The reward of a completion is a number looked up by its first token."""

    def __init__(self, values=()):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(10, dtype=torch.float64))
        with torch.no_grad():
            for token, value in values:
                self.table[token] = value

    def forward(self, groups):
        return self.table[groups.completion_ids[..., 0]]


def make_method(model, pairs=PAIRS, max_tokens=10**6, batch_size=4):
    data = GivenCompletions(PROMPTS, pairs, 0, max_tokens)
    return RewardModelling(model, data, data, batch_size, seed=0)


def take_step(method, step=0):
    for update in method.updates(step):
        for loss in update:
            loss().backward()
    return dict(method.metrics())


def test_what_can_be_told_apart_is_learned_with_the_chosen_on_top():
    model = FirstToken()
    method = make_method(model, batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(10):
        take_step(method, step)
        optimizer.step()
        optimizer.zero_grad()
    assert model.table[3] > model.table[4] + 1
    assert method.metrics()["accuracy"] == 1.0
    assert method.evaluate(10)["validation/accuracy"] == 1.0


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_loss_accuracy_margin_and_gradient_by_hand(max_tokens):
    """Three pairs with margin 2 - 0.5 and one with 0.5 - 2, in one micro-batch or in four."""
    pairs = [*PAIRS[:3], [[4, 1], [3, 1]]]
    model = FirstToken([(3, 2.0), (4, 0.5)])
    method = make_method(model, pairs, max_tokens)
    right, wrong = math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(1.5))  # -log sigmoid(margin)
    expected = {"loss": (3 * right + wrong) / 4, "accuracy": 3 / 4, "margin/mean": (3 * 1.5 - 1.5) / 4}
    assert take_step(method) == pytest.approx(expected)
    held_out = {f"validation/{name}": value for name, value in expected.items()}
    assert method.evaluate(0) == pytest.approx(held_out)
    # d loss / d reward(chosen) = -sigmoid(-margin) / pairs
    slope = (3 / (1 + math.exp(1.5)) - 1 / (1 + math.exp(-1.5))) / 4
    assert_close(model.table.grad[[3, 4]], torch.tensor([-slope, slope], dtype=torch.float64))


def test_a_tie_is_half_right():
    method = make_method(FirstToken())
    expected = {"loss": math.log(2), "accuracy": 0.5, "margin/mean": 0.0}
    assert take_step(method) == pytest.approx(expected)
    assert method.evaluate(0)["validation/accuracy"] == 0.5
