"""Weighted sums by hand: what is logged is what is used (TRL#5352)."""

import math

import torch
from torch.testing import assert_close

from rloo_core.rewards import CombinedReward, Term

NAN = math.nan


def constant(values):
    return lambda groups, rows: torch.tensor(values)


def test_weights_multiply_and_what_one_cannot_score_the_others_do():
    combined = CombinedReward(
        [Term("a", constant([[1.0, NAN], [3.0, NAN]]), 2.0), Term("b", constant([[10.0, 20.0], [NAN, NAN]]), -1.0)]
    )
    total = combined(None, [])
    assert_close(total, torch.tensor([[-8.0, -20.0], [6.0, NAN]]), equal_nan=True)
    assert combined.last["a"][0, 0] == 1.0  # logged without its weight


def test_a_weight_of_zero_only_watches():
    combined = CombinedReward([Term("a", constant([[1.0, 2.0]]), 1.0), Term("b", constant([[5.0, 7.0]]), 0.0)])
    assert_close(combined(None, []), torch.tensor([[1.0, 2.0]]))
