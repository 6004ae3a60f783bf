"""From a completion to the reward training sees: noise, clip, missing EOS, then KL; metrics show the raw reward."""

import pytest
import torch
from torch.testing import assert_close

from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, give
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS
from tests.rloo_core.tiny import tiny_neox


def ladder(groups, rows):
    """1000, 1, 1000, 1, ... one after the other."""
    return torch.tensor([1000.0, 1.0]).repeat(groups.completion_ids.shape[0], 1)


def method(reward=ladder, reference=None, max_tokens=10**6, prompts=((5, 6), (7,), (8, 9, 10), (11,)), **changes):
    settings = composed("rloo", **{"group_size": 2, "missing_eos_penalty": None, "kl_coef": 0.0} | changes)
    reference = reference_logprobs(reference, settings.temperature) if reference is not None else None
    return online_method(settings, tiny_neox(), reference, prompts=prompts, reward=reward, max_tokens=max_tokens)


def test_the_reward_is_clipped_before_the_baseline():
    """Two siblings, 1000 and 1, clip 10: the advantages are 9 and -9, not 10 and -10."""
    metrics = take(method(reward_clip=10.0))
    assert metrics["advantage/std"] == pytest.approx(9 * (8 / 7) ** 0.5)
    assert metrics["reward/mean"] == 500.5
    assert metrics["shaped_reward/mean"] == 5.5


def test_the_kl_is_not_clipped():
    own = method(reward_clip=1.0, reference=tiny_neox(seed=5), kl_coef=0.5)
    metrics = take(own)
    assert abs(0.5 * metrics["kl/mean"]) > 1  # a KL that the clip would have cut
    assert metrics["shaped_reward/mean"] == pytest.approx(1.0 - 0.5 * metrics["kl/mean"], rel=1e-5)


def test_a_penalty_comes_after_the_clip():
    found = method(reward_clip=10.0, missing_eos_penalty=2.5).collector.collect(0)
    assert (~found.finished).any()
    expected = torch.tensor([[10.0, 1.0]]).repeat(4, 1) - 2.5 * (~found.finished)
    assert_close(found.scores, expected)


def noise_of(step=0, **changes):
    found = method(reward_noise=2.0, **changes).collector.collect(step)
    return found.scores - found.rewards


def test_each_completion_has_noise_of_its_own_with_the_sigma_asked_for():
    prompts = [[5 + i % 10] for i in range(128)]
    noise = noise_of(prompts=prompts, rollout_batch_size=512, group_size=4, max_new_tokens=1, reward=nothing).flatten()
    assert len(noise.unique()) == 512
    assert noise.std().item() == pytest.approx(2.0, abs=0.2)  # 3 standard errors
    assert noise.mean().item() == pytest.approx(0.0, abs=0.27)
    siblings = noise.view(128, 4)
    assert (siblings - siblings.mean(1, keepdim=True)).std().item() == pytest.approx(2.0 * (3 / 4) ** 0.5, abs=0.2)


def nothing(groups, rows):
    return torch.zeros(groups.completion_ids.shape[:2])


def test_noise_depends_on_step_place_and_sample_alone():
    assert torch.equal(noise_of(), noise_of(max_tokens=1))
    assert not torch.isclose(noise_of(), noise_of(step=1)).any()
    assert not torch.isclose(noise_of(), noise_of(seed=1)).any()


def test_noise_is_clipped_with_the_reward_and_does_not_show_in_the_metrics():
    own = method(reward=nothing, reward_noise=5.0, reward_clip=1.0)
    found = own.collector.collect(0)
    assert found.scores.abs().max() == 1.0
    metrics = take(own)
    assert metrics["reward/mean"] == metrics["reward/std"] == metrics["reward/group_std"] == 0.0
    assert metrics["reward/zero_std_frac"] == 1.0
    assert metrics["shaped_reward/mean"] == pytest.approx(found.scores.mean().item())
    assert metrics["advantage/std"] > 0.5


def test_an_unknown_reward_stays_unknown_whatever_is_added():
    def half_known(groups, rows):
        return torch.tensor([[torch.nan, 2.0]]).repeat(len(rows), 1)

    found = method(
        reward=half_known, reward_noise=1.0, missing_eos_penalty=1.0, missing_eos="replace"
    ).collector.collect(0)
    assert found.rewards[:, 0].isnan().all()
    assert (found.scores[:, 0] == 0).all()
    assert (found.scorable == torch.tensor([[False, True]])).all()


def test_what_stands_after_the_end_changes_nothing():
    """Padding filled with other tokens: the same gradient, the same metrics, to the bit."""
    found = []
    for junk in (0, 1, 12):
        own = method(reference=tiny_neox(seed=5), kl_coef=0.3, prompts=PROMPTS)
        rollout = rollout_of(PROMPTS, COMPLETIONS, REWARDS)
        rollout.groups.completion_ids.masked_fill_(~rollout.groups.response_mask, junk)
        rollout.groups.prompt_ids.masked_fill_(~rollout.groups.prompt_mask, junk)
        metrics = take(give(own, rollout))
        found.append((gradient(own.policy), metrics))
    for other, metrics in found[1:]:
        assert torch.equal(other, found[0][0])
        assert metrics == found[0][1]
