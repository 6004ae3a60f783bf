"""Clipping of rewards, and what a missing EOS costs: by hand."""

import pytest
import torch

from rloo_core.scores import charge_missing_eos, clip_rewards

REWARDS = torch.tensor([[-30.0, -0.5], [2.0, 1000.0]])
FINISHED = torch.tensor([[True, False], [False, True]])


def test_rewards_are_clipped_on_both_sides():
    assert clip_rewards(REWARDS, 10.0).tolist() == [[-10.0, -0.5], [2.0, 10.0]]
    assert clip_rewards(REWARDS, None) is REWARDS


@pytest.mark.parametrize(
    ("rule", "expected"), [("subtract", [[-30.0, -3.0], [-0.5, 1000.0]]), ("replace", [[-30.0, -2.5], [-2.5, 1000.0]])]
)
def test_only_unfinished_completions_pay_and_exactly_the_penalty(rule, expected):
    assert charge_missing_eos(REWARDS, FINISHED, 2.5, rule).tolist() == expected


@pytest.mark.parametrize("rule", ["subtract", "replace"])
def test_without_a_penalty_nothing_is_charged(rule):
    assert charge_missing_eos(REWARDS, FINISHED, None, rule) is REWARDS


def test_a_penalty_of_zero_replaces_by_zero():
    assert charge_missing_eos(REWARDS, FINISHED, 0.0, "replace").tolist() == [[-30.0, 0.0], [0.0, 1000.0]]
    assert charge_missing_eos(REWARDS, FINISHED, 0.0, "subtract").tolist() == REWARDS.tolist()
