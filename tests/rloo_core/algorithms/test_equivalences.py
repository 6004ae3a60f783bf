"""Methods that are the same by definition have the same gradients: over all parameters, through the real wiring."""

import pytest
import torch

from rloo_core.advantages import RunningMean
from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance, give, take_first, tiny_critic
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS, gradient_of, lines
from tests.rloo_core.tiny import tiny_llama, tiny_neox

KINDS = {"neox": (tiny_neox, 1e-9), "llama": (tiny_llama, 1e-6)}  # RMSNorm casts to float32
KL_COEF = 0.3
PPO_WITHOUT_ITS_PARTS = {
    "gae_lambda": 1.0, "ratio": "none", "clip": None, "whiten_advantages": False, "epochs_per_rollout": 1,
    "critic_value_clip": None,
}  # fmt: skip


class Bench:
    """Policy, reference and critic in float64, and the given completions as a step of theirs."""

    def __init__(self, kind="neox", layout=Layout.PADDED):
        make, self.tolerance = KINDS[kind]
        self.policy, self.reference = make(seed=0).double(), make(seed=5).double()
        self.critic, self.layout = tiny_critic(self.policy, layout=layout), layout

    def method(self, name, **changes):
        settings = composed(name, **{"group_size": 2, "kl_coef": KL_COEF, "missing_eos_penalty": None} | changes)
        critic = self.critic if settings.advantage == "gae" else None
        reference = reference_logprobs(self.reference, 1.0) if settings.kl_coef else None
        return online_method(settings, self.policy, reference, critic, prompts=PROMPTS, layout=self.layout)

    def gradient(self, method, updates=None):
        """Of policy and critic, over all updates of the step or the first few."""
        self.policy.zero_grad()
        self.critic.zero_grad()
        rollout = rollout_of(PROMPTS, COMPLETIONS, REWARDS)
        if updates is None:
            take(method, rollout)
        else:
            take_first(method, rollout, updates)
        return gradient(self.policy, self.critic)


def test_ppo_without_its_parts_has_the_settings_of_vanilla_pg():
    assert composed("ppo", **PPO_WITHOUT_ITS_PARTS) == composed("vanilla_pg", name="ppo")


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("kind", list(KINDS))
def test_ppo_without_its_parts_is_vanilla_pg_as_it_is_defined(kind, layout):
    """Return-to-go less the critic's value, one token of one completion at a time; half the squared error beside it."""
    bench = Bench(kind, layout)
    found = bench.gradient(bench.method("ppo", **PPO_WITHOUT_ITS_PARTS))
    policy_loss = critic_loss = tokens = 0
    for p, group in enumerate(lines(bench.policy, bench.reference, bench.critic)):
        for k, line in enumerate(group):
            kl = (line.logprobs - line.ref_logprobs).detach()
            for t in range(len(kl)):
                return_to_go = REWARDS[p, k] - KL_COEF * kl[t:].sum()
                policy_loss = policy_loss - (return_to_go - line.values[t].detach()) * line.logprobs[t] / 8
                critic_loss = critic_loss + (line.values[t] - return_to_go) ** 2 / 2
                tokens += 1
    expected = gradient_of(policy_loss + critic_loss / tokens, bench.policy, bench.critic)
    assert distance(found, expected) < bench.tolerance


def test_in_the_first_update_ratio_and_clip_do_nothing():
    """PPO's first update has the gradient of -A log pi, with the same advantages."""
    bench = Bench()
    with_ratio = bench.gradient(bench.method("ppo", ratio="token", clip=0.2), updates=1)
    without = bench.gradient(bench.method("ppo", ratio="none", clip=None), updates=1)
    assert distance(with_ratio, without) < bench.tolerance


def test_in_the_second_update_the_clipped_ratio_is_that_to_the_policy_that_sampled():
    """-min(A r, A clamp(r)) a token, with A of the first weights and r of the second over the first."""
    bench = Bench()
    method = bench.method("ppo", whiten_advantages=False, gae_lambda=1.0, clip=0.1, critic_value_clip=None)
    updates = iter(give(method, rollout_of(PROMPTS, COMPLETIONS, REWARDS)).updates(0))
    next(updates)
    before = lines(bench.policy, bench.reference, bench.critic)
    advantages = [[_returns(p, k, line) - line.values for k, line in enumerate(g)] for p, g in enumerate(before)]
    with torch.no_grad():
        for parameter in bench.policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    (loss,) = next(updates)
    loss().backward()
    expected, bound = 0, 0
    for p, group in enumerate(lines(bench.policy, bench.reference)):
        for k, line in enumerate(group):
            advantage = advantages[p][k].detach()
            ratio = (line.logprobs - before[p][k].logprobs.detach()).exp()
            terms = torch.minimum(advantage * ratio, advantage * ratio.clamp(0.9, 1.1))
            bound += int((terms != advantage * ratio).sum())
            expected = expected - terms.sum() / 8
    assert bound >= 3
    assert distance(gradient(bench.policy), gradient_of(expected, bench.policy)) < bench.tolerance


def _returns(p, k, line):
    kl = (line.logprobs - line.ref_logprobs).detach()
    return torch.stack([REWARDS[p, k] - KL_COEF * kl[t:].sum() for t in range(len(kl))])


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("kind", list(KINDS))
def test_rloo_with_two_completions_is_the_formula_of_appendix_b(kind, layout):
    """(R+ - R-)/2 * (-log pi(y+) + log pi(y-)), averaged over prompts."""
    bench = Bench(kind, layout)
    found = bench.gradient(bench.method("rloo"))
    expected = 0
    for rewards, pair in zip(REWARDS, lines(bench.policy, bench.reference), strict=True):
        first, second = (line.logprobs.sum() for line in pair)
        shaped = [r - KL_COEF * (li.logprobs - li.ref_logprobs).sum() for r, li in zip(rewards, pair, strict=True)]
        expected = expected + ((shaped[0] - shaped[1]) / 2).detach() * (second - first) / 4
    assert distance(found, gradient_of(expected, bench.policy)) < bench.tolerance


def silent(critic):
    """A critic that says 0 everywhere."""
    critic.classifier.score.weight.data.zero_()
    critic.offset = 0.0
    return critic


def test_tokens_without_a_baseline_are_the_sequence_with_kl_already_paid_taken_back():
    """Return-to-go of token t = R + kl_coef * KL of the tokens before t, so

        token gradient = sequence gradient of R - kl_coef/N * sum over t of (KL before t) * grad log pi_t;

    the last part is a sum of baselines, zero on average. The sequence gradient is reinforce's with a past mean of 0.
    """
    bench = Bench()
    silent(bench.critic)
    tokens = bench.gradient(bench.method("vanilla_pg"))[: bench.gradient(bench.method("rloo")).numel()]
    method = bench.method("reinforce")
    method.past = RunningMean(5, 0.0)
    sequence = bench.gradient(method)
    paid = 0
    for line in (line for group in lines(bench.policy, bench.reference) for line in group):
        kl = (line.logprobs - line.ref_logprobs).detach()
        paid = paid - KL_COEF * ((kl.cumsum(0) - kl) * line.logprobs).sum() / 8
    correction = gradient_of(paid, bench.policy)
    assert distance(sequence, tokens) > 0.01
    assert distance(sequence + correction, tokens) < bench.tolerance


def test_without_kl_tokens_and_sequences_have_the_same_gradient():
    bench = Bench()
    silent(bench.critic)
    method = bench.method("reinforce", kl_coef=0.0)
    method.past = RunningMean(5, 0.0)
    sequence = bench.gradient(method)
    tokens = bench.gradient(bench.method("vanilla_pg", kl_coef=0.0))[: sequence.numel()]
    assert distance(sequence, tokens) < bench.tolerance
