import json
import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.advantages import RunningMean, batch_leave_one_out


def test_it_is_the_arithmetic_mean_of_the_past():
    state = RunningMean().updated(torch.tensor([[1.0], [2.0]])).updated(torch.tensor([[9.0]]))
    assert state == RunningMean(count=3, total=12.0)
    assert state.mean == 4.0


def test_the_batch_at_hand_is_not_in_its_own_baseline():
    state = RunningMean(count=2, total=3.0)  # mean 1.5
    assert_close(state.advantages(torch.tensor([[10.0], [1.0]])), torch.tensor([[8.5], [-0.5]]))


def test_the_first_batch_has_no_past_and_compares_within():
    rewards = torch.tensor([[1.0], [2.0], [6.0]])
    assert_close(RunningMean().advantages(rewards), batch_leave_one_out(rewards))
    with pytest.raises(ValueError, match="at least one"):
        _ = RunningMean().mean


def test_an_unscorable_completion_gets_nothing():
    rewards = torch.tensor([[math.nan, 4.0]])
    scorable = torch.tensor([[False, True]])
    assert RunningMean(1, 1.0).advantages(rewards, scorable).tolist() == [[0.0, 3.0]]


def test_what_is_not_finite_never_enters():
    with pytest.raises(ValueError, match="finite"):
        RunningMean(1, 1.0).updated(torch.tensor([math.nan]))


def test_it_survives_a_checkpoint_to_the_last_bit():
    state = RunningMean().updated(torch.tensor([0.1, 0.2, 1 / 3], dtype=torch.float64))
    assert RunningMean.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_many_small_rewards_on_a_large_sum_are_not_lost():
    """In float32, 2^26 + 4 is 2^26: the sum within a batch needs the wider type too."""
    batch = torch.cat([torch.tensor([2.0**26]), torch.full((8,), 0.5)])
    assert RunningMean(1, 1.0).updated(batch).total == 2.0**26 + 5
