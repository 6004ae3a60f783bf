import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.advantages import (
    batch_leave_one_out,
    best_of_group,
    equal_reward_groups,
    group_mean,
    group_standardised,
    leave_one_out,
    whiten,
)

BASELINES = (leave_one_out, batch_leave_one_out, group_mean, group_standardised)
NAN = math.nan


def random_rewards(prompts, group_size, seed=0):
    return torch.randn(prompts, group_size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_worked_by_hand():
    # siblings of 3 are {1, 2}: baseline 1.5; of 1 {3, 2}: 2.5; of 2 {3, 1}: 2
    assert_close(leave_one_out(torch.tensor([[3.0, 1.0, 2.0]])), torch.tensor([[1.5, -1.5, 0.0]]))


def test_the_example_of_the_paper():
    # rewards 2, 5, 3, 6: baselines 14/3, 11/3, 13/3, 10/3
    expected = torch.tensor([[-8 / 3, 4 / 3, -4 / 3, 8 / 3]])
    assert_close(leave_one_out(torch.tensor([[2.0, 5.0, 3.0, 6.0]])), expected)


@pytest.mark.parametrize("group_size", [2, 3, 8])
def test_equals_the_definition(group_size):
    rewards = random_rewards(5, group_size)
    expected = torch.empty_like(rewards)
    for p, row in enumerate(rewards.tolist()):
        for i, reward in enumerate(row):
            expected[p, i] = reward - sum(row[:i] + row[i + 1 :]) / (group_size - 1)
    assert_close(leave_one_out(rewards), expected)


@pytest.mark.parametrize("group_size", [2, 4])
def test_the_mean_over_all_shrinks_it(group_size):
    """R_i - mean of all = (K-1)/K * (R_i - mean of siblings)."""
    rewards = random_rewards(3, group_size)
    with_mean_of_all = rewards - rewards.mean(1, keepdim=True)
    assert_close(group_mean(rewards), with_mean_of_all)
    assert_close(with_mean_of_all, (group_size - 1) / group_size * leave_one_out(rewards))


@pytest.mark.parametrize("baseline", [leave_one_out, group_mean, group_standardised])
def test_a_constant_added_to_one_prompt_changes_nothing(baseline):
    rewards = torch.tensor([[1.0, 4.0], [2.0, 0.0]])
    assert_close(baseline(rewards + torch.tensor([[10.0], [0.0]])), baseline(rewards))


@pytest.mark.parametrize("function", [leave_one_out, group_mean, group_standardised, best_of_group])
def test_one_completion_has_no_siblings(function):
    with pytest.raises(ValueError, match=rf"{function.__name__}.*K >= 2; got \[8, 1\]"):
        function(torch.zeros(8, 1))


def test_the_batch_is_one_large_group():
    # one completion a prompt, rewards 1, 2, 6: the others' means are 4, 3.5, 1.5
    assert_close(batch_leave_one_out(torch.tensor([[1.0], [2.0], [6.0]])), torch.tensor([[-3.0], [-1.5], [4.5]]))
    with pytest.raises(ValueError, match=r"P \* K >= 2; got \[1, 1\]"):
        batch_leave_one_out(torch.zeros(1, 1))


def test_standardised_by_hand():
    # rewards 1, 2, 6: mean 3, squares 4 + 1 + 9, sample std sqrt(14 / 2)
    expected = torch.tensor([[-2.0, -1.0, 3.0]]) / (math.sqrt(7) + 1e-4)
    assert_close(group_standardised(torch.tensor([[1.0, 2.0, 6.0]])), expected)


def test_standardising_makes_groups_of_any_spread_alike_and_whitening_does_not():
    """Two prompts, rewards 100 times as spread in the second: "group" and "batch" mean what they say."""
    rewards = torch.tensor([[0.0, 1.0, 2.0], [0.0, 100.0, 200.0]], dtype=torch.float64)
    by_group = group_standardised(rewards)
    assert_close(by_group.std(1), torch.ones(2, dtype=torch.float64), rtol=0, atol=2e-4)
    by_batch = whiten(leave_one_out(rewards), torch.ones_like(rewards, dtype=torch.bool))
    assert_close(by_batch[1], 100 * by_batch[0])
    assert_close(by_batch.std(), torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group_size", [2, 4, 8, 16])
@pytest.mark.parametrize("common", [0.3, 0.9, 1 / 3, 0.35])
def test_one_odd_reward_never_explodes(common, group_size, dtype):
    """The std of equal rewards is rounding alone when it comes from E[x^2] - E[x]^2; that made advantages of 7428."""
    rewards = torch.tensor([[1.0] + [common] * (group_size - 1)], dtype=dtype)
    assert (group_standardised(rewards).abs() <= math.sqrt(group_size)).all()
    assert (leave_one_out(rewards).abs() <= (1 - common) * (1 + 1e-6)).all()
    siblings = rewards[:, 1:]
    if group_size > 2:
        assert (leave_one_out(siblings) == 0).all()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rewards_equal_up_to_rounding_teach_nothing(scale):
    one = torch.tensor(0.1, dtype=torch.float32) * scale
    residue = torch.stack([one * 3, one + one + one, one * 3, torch.nextafter(one * 3, torch.tensor(torch.inf))])[None]
    assert residue.unique().numel() > 1  # they are not the same bits
    assert (group_standardised(residue) == 0).all()
    assert equal_reward_groups(residue).all()


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e7 + 1])
def test_equal_rewards_give_exactly_zero(baseline, value):
    assert (baseline(torch.full((2, 7), value)) == 0).all()


def test_a_large_common_reward_does_not_eat_the_differences():
    small = torch.tensor([[0.0, 1.0, 3.0]])
    assert_close(leave_one_out(small + 2.0**22), leave_one_out(small), rtol=1e-6, atol=0)


@pytest.mark.parametrize("function", [*BASELINES, best_of_group])
def test_an_unscorable_completion_is_not_there(function):
    """Its reward may be NaN; the others' advantages are those of the group without it."""
    rewards = torch.tensor([[1.0, NAN, 4.0, 2.0]])
    scorable = torch.tensor([[True, False, True, True]])
    found = function(rewards, scorable)
    assert found[0, 1] == 0
    assert_close(found[:, [0, 2, 3]], function(torch.tensor([[1.0, 4.0, 2.0]])))


@pytest.mark.parametrize("function", [leave_one_out, group_mean, group_standardised])
def test_without_scorable_siblings_there_is_nothing_to_compare_with(function):
    rewards = torch.tensor([[5.0, NAN], [NAN, NAN]])
    assert (function(rewards, torch.tensor([[True, False], [False, False]])) == 0).all()


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \[2, 3\]; got torch.bool \[3\]"):
        leave_one_out(torch.zeros(2, 3), torch.ones(3, dtype=torch.bool))


def test_the_best_of_each_prompt_is_kept_and_not_the_best_of_all():
    rewards = torch.tensor([[1.0, 3.0, 2.0], [70.0, 70.0, 60.0], [NAN, -5.0, -7.0], [NAN, NAN, NAN]])
    kept = best_of_group(rewards, ~rewards.isnan())
    # the easy prompt's tie goes to the lowest index; the hard prompt has a winner too; nothing scorable, nothing kept
    assert kept.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_groups_without_differences():
    rewards = torch.tensor([[0.3, 0.3, 0.3], [0.0, 1.0, 0.0], [2.0, NAN, 2.0], [2.0, NAN, NAN], [NAN, NAN, NAN]])
    assert equal_reward_groups(rewards, ~rewards.isnan()).tolist() == [True, False, True, True, True]
    assert equal_reward_groups(torch.tensor([[1.0, 1.0 + 1e-5]])).tolist() == [False]
