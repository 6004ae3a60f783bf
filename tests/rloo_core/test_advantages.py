import pytest
import torch
from torch.testing import assert_close

from rloo_core.advantages import leave_one_out


def test_worked_by_hand():
    # siblings of 3 are {1, 2}: baseline 1.5; of 1 {3, 2}: 2.5; of 2 {3, 1}: 2
    assert_close(leave_one_out(torch.tensor([[3.0, 1.0, 2.0]])), torch.tensor([[1.5, -1.5, 0.0]]))


def test_the_example_of_the_paper():
    # rewards 2, 5, 3, 6: baselines 14/3, 11/3, 13/3, 10/3
    expected = torch.tensor([[-8 / 3, 4 / 3, -4 / 3, 8 / 3]])
    assert_close(leave_one_out(torch.tensor([[2.0, 5.0, 3.0, 6.0]])), expected)


@pytest.mark.parametrize("group_size", [2, 3, 8])
def test_equals_the_definition(group_size):
    rewards = torch.randn(5, group_size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.empty_like(rewards)
    for p, row in enumerate(rewards.tolist()):
        for i, reward in enumerate(row):
            expected[p, i] = reward - sum(row[:i] + row[i + 1 :]) / (group_size - 1)
    assert_close(leave_one_out(rewards), expected)


@pytest.mark.parametrize("group_size", [2, 4])
def test_the_mean_over_all_shrinks_it(group_size):
    """R_i - mean of all = (K-1)/K * (R_i - mean of siblings)."""
    rewards = torch.randn(3, group_size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with_mean_of_all = rewards - rewards.mean(1, keepdim=True)
    assert_close(with_mean_of_all, (group_size - 1) / group_size * leave_one_out(rewards))


def test_a_constant_added_to_one_prompt_changes_nothing():
    rewards = torch.tensor([[1.0, 4.0], [2.0, 0.0]])
    assert_close(leave_one_out(rewards + torch.tensor([[10.0], [0.0]])), leave_one_out(rewards))


def test_one_completion_has_no_siblings():
    with pytest.raises(ValueError, match=r"K >= 2; got \[8, 1\]"):
        leave_one_out(torch.zeros(8, 1))
