"""What a method remembers between steps: the mean of past rewards, and a KL coefficient that follows a target."""

import json

import pytest
import torch

from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS, gradient_of, lines
from tests.rloo_core.tiny import tiny_neox

KL_COEF = 0.3


def make(name, **changes):
    policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
    settings = composed(name, **{"group_size": 2, "kl_coef": KL_COEF, "missing_eos_penalty": None} | changes)
    own = online_method(settings, policy, reference_logprobs(reference, 1.0), prompts=PROMPTS)
    return own, policy, reference


def step(own, rewards=REWARDS):
    own.policy.zero_grad()
    return take(own, rollout_of(PROMPTS, COMPLETIONS, rewards))


def resumed(own, name, **changes):
    """A new method that was given the old one's state as a checkpoint keeps it."""
    new = make(name, **changes)
    new[0].restore(json.loads(json.dumps(own.state())))
    return new


def kl_of(policy, reference):
    return [[(li.logprobs - li.ref_logprobs).sum().item() for li in group] for group in lines(policy, reference)]


def shaped(policy, reference, rewards, coef=KL_COEF):
    return rewards - coef * torch.tensor(kl_of(policy, reference), dtype=torch.float64)


# Running mean


def reinforce_gradient(policy, reference, advantages):
    pairs = zip(advantages.flatten().tolist(), (li for g in lines(policy, reference) for li in g), strict=True)
    return gradient_of(sum(-a * line.logprobs.sum() for a, line in pairs) / 8, policy)


def test_the_first_batch_is_compared_with_the_rest_of_itself():
    own, policy, reference = make("reinforce")
    step(own)
    values = shaped(policy, reference, REWARDS)
    others = (values.sum() - values) / 7
    assert distance(gradient(policy), reinforce_gradient(policy, reference, values - others)) < 1e-9


@pytest.mark.parametrize("stopped", [False, True])
def test_later_batches_with_the_mean_of_all_before_them(stopped):
    """The third batch: baseline = mean of the 16 shaped rewards before it, whether or not the run was stopped there."""
    own, policy, reference = make("reinforce")
    batches = [REWARDS, REWARDS + 5.0, REWARDS * 2]
    metrics = [step(own, rewards) for rewards in batches[:2]]
    past = torch.stack([shaped(policy, reference, rewards) for rewards in batches[:2]])
    assert [row["baseline/mean"] for row in metrics] == pytest.approx([past[0].mean().item(), past.mean().item()])
    if stopped:
        own, policy, reference = resumed(own, "reinforce")
    step(own, batches[2])
    advantages = shaped(policy, reference, batches[2]) - past.mean()
    assert distance(gradient(policy), reinforce_gradient(policy, reference, advantages)) < 1e-9


def test_an_unknown_reward_never_enters_the_mean():
    own, policy, reference = make("reinforce")
    rewards = REWARDS.clone()
    rewards[2, 1] = torch.nan
    metrics = step(own, rewards)
    assert own.past.count == 7
    assert metrics["baseline/mean"] == pytest.approx(shaped(policy, reference, rewards).nanmean().item())


# Adaptive KL coefficient


@pytest.mark.parametrize(("times", "error"), [(1.1, 0.1), (0.9, -0.1), (0.01, -0.2), (100.0, 0.2)])
def test_the_coefficient_follows_the_kl_that_is_shown(times, error):
    """Ziegler et al. 2019: times 1 + clip(KL/target - 1, -0.2, 0.2) * completions / horizon. Shown is k3 here."""
    k3 = step(make("rloo")[0])["kl/k3_mean"]
    own, *_ = make("rloo", kl_target=k3 / times, kl_horizon=100, kl_monitor="k3")
    assert step(own)["kl/coef"] == KL_COEF  # the one the step was shaped with
    assert own.kl_coef == pytest.approx(KL_COEF * (1 + error * 8 / 100))


@pytest.mark.parametrize("stopped", [False, True])
def test_the_next_step_is_shaped_with_the_new_coefficient(stopped):
    changes = {"kl_target": 1e-6, "kl_horizon": 10, "kl_monitor": "k3"}
    own, policy, reference = make("rloo", **changes)
    step(own)
    if stopped:
        own, policy, reference = resumed(own, "rloo", **changes)
    metrics = step(own)
    coef = KL_COEF * (1 + 0.2 * 8 / 10)
    assert metrics["kl/coef"] == pytest.approx(coef)
    assert metrics["shaped_reward/mean"] == pytest.approx(shaped(policy, reference, REWARDS, coef).mean().item())


def test_without_a_target_it_stays():
    own, *_ = make("rloo")
    assert "kl/coef" not in step(own)
    assert own.kl_coef == KL_COEF
