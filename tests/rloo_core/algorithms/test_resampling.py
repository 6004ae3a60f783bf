"""Dynamic sampling: prompts whose completions have equal raw rewards give their place to others, and are counted."""

import pytest
import torch
from torch.testing import assert_close

from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import algorithm_settings, online_method, take
from tests.rloo_core.tiny import tiny_neox

DEAD, ALIVE = [[5], [6], [7]], [[8], [9], [10]]
FAMILY = {"advantage": "group_standardised", "kl": {"place": "loss"}, "kl_coef": 0.0, "loss_agg": "token_mean"}


def reward(groups, rows):
    """Equal for prompts below 8; for others the first half 0, the second half 1."""
    prompts, group_size = groups.completion_ids.shape[:2]
    halves = (torch.arange(group_size) >= group_size // 2).float().expand(prompts, -1)
    alive = torch.tensor([[ids[-1] >= 8] for ids in groups.prompt_lists()])
    return halves.where(alive, 0.5)


def method_of(prompts, times, **changes):
    values = {"resample_equal_rewards": times, "rollout_batch_size": 12, "group_size": 4, "max_new_tokens": 5}
    settings = algorithm_settings(**(FAMILY | values | changes))
    return online_method(settings, tiny_neox(), prompts=prompts, reward=reward)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_dead_prompts_are_exchanged_so_often_and_then_dropped(times):
    asked = []
    method = method_of(DEAD + ALIVE, times)
    inner = method.collector.reward
    object.__setattr__(
        method.collector, "reward", lambda groups, rows: (asked.append(len(rows)), inner(groups, rows))[1]
    )
    for step in range(4):
        asked.clear()
        rollout = method.collector.collect(step)
        dead = [ids[-1] < 8 for ids in rollout.groups.prompt_lists()]
        assert rollout.dropped.tolist() == dead
        assert asked[0] == 3
        assert len(asked) <= times + 1
        assert asked == sorted(asked, reverse=True)  # only places that are still dead are sampled again
        if any(dead):
            assert len(asked) == times + 1


def test_without_resampling_nothing_is_dropped():
    rollout = method_of(DEAD, 0).collector.collect(0)
    assert not rollout.dropped.any()


def test_a_step_depends_on_nothing_but_its_number():
    def prompts(steps):
        method = method_of(DEAD + ALIVE, 2)
        return [method.collector.collect(step).groups.completion_lists() for step in steps][-1]

    assert prompts([3]) == prompts([0, 1, 2, 3])


def test_the_filter_looks_at_raw_rewards():
    """The slope before the length limit and a missing EOS make scores differ: the group is dead all the same."""
    method = method_of(DEAD, 1, overlong_buffer=4, missing_eos_penalty=3.0)
    rollout = method.collector.collect(0)
    assert (rollout.scores.std(1) > 0).any()
    assert rollout.dropped.all()


def test_a_group_that_differs_is_kept_whole():
    rollout = method_of(ALIVE, 1).collector.collect(0)
    assert not rollout.dropped.any()
    assert rollout.rewards.tolist() == [[0.0, 0.0, 1.0, 1.0]] * 3


def test_what_is_dropped_is_in_no_denominator_and_has_no_gradient():
    """Two dead places of three: the gradient is that of the one that lives, alone."""
    mixed = method_of([[5], [6], [9]], 1)
    object.__setattr__(mixed.collector, "policy", mixed.policy)
    rollout = method_of([[5], [6], [9]], 0).collector.collect(0)
    from dataclasses import replace

    dead = torch.tensor([ids[-1] < 8 for ids in rollout.groups.prompt_lists()])
    metrics = take(mixed, replace(rollout, dropped=dead))
    alone = method_of([[9]], 0, rollout_batch_size=4)
    row = dead.logical_not().nonzero().flatten().tolist()
    take(alone, replace(rollout.select(row), places=[0]))
    assert metrics["reward/dropped_frac"] == pytest.approx(2 / 3)
    for a, b in zip(mixed.policy.parameters(), alone.policy.parameters(), strict=True):
        assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-7)


def test_where_everything_is_dropped_nothing_moves():
    method = method_of(DEAD, 1)
    metrics = take(method)
    assert metrics["reward/dropped_frac"] == 1.0
    assert all(p.grad is None or not p.grad.any() for p in method.policy.parameters())


def test_the_soft_length_limit_is_part_of_the_score_not_of_the_raw_reward():
    method = method_of(ALIVE, 0, overlong_buffer=2)
    rollout = method.collector.collect(0)
    lengths = rollout.groups.response_mask.sum(-1)
    expected = torch.where(lengths <= 3, 0.0, -(lengths - 3).float() / 2)
    assert_close(rollout.scores - rollout.rewards, expected)


def test_the_reference_plays_no_part():
    """Raw rewards alone decide, also where KL makes shaped rewards differ."""
    settings = algorithm_settings(
        **FAMILY | {"kl_coef": 1.0}, resample_equal_rewards=1, rollout_batch_size=12, group_size=4, max_new_tokens=5
    )
    reference = reference_logprobs(tiny_neox(seed=3), 1.0)
    method = online_method(settings, tiny_neox(), reference, prompts=DEAD, reward=reward)
    assert take(method)["reward/dropped_frac"] == 1.0
