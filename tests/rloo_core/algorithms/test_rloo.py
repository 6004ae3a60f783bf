"""RLOO's step against exact expectations: an enumerable policy, every pair of completions, float64."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import algorithm_settings, online_method, rollout_of, take
from tests.rloo_core.tiny import BigramPolicy, tiny_neox

PROMPT = [1]
KL_COEF = 0.3
LENGTH = 2


def make_method(policy, reference, *, group_size=2, kl_coef=KL_COEF, prompts=None, reward=None, eos=0, **changes):
    prompts = prompts or [PROMPT]
    values = {"group_size": group_size, "rollout_batch_size": len(prompts) * group_size, "kl_coef": kl_coef}
    values |= {"max_new_tokens": LENGTH} | changes
    max_tokens = values.pop("max_tokens", 10**6)
    # a bigram policy looks at the last token of a row only
    layout = Layout.PADDED if isinstance(policy, BigramPolicy) else Layout.SHARED
    return online_method(
        algorithm_settings(**values), policy, reference_logprobs(reference, 1.0, layout) if kl_coef else None,
        prompts=prompts, reward=reward, eos_ids=(eos,), layout=layout, max_tokens=max_tokens,
    )  # fmt: skip


def pair_gradient(method, policy, pair, rewards):
    policy.table.grad = None
    take(method, rollout_of([PROMPT], [list(pair)], rewards, eos_ids=(0,)))
    return policy.table.grad


def reward_of(completion):
    return 1.0 + sum((i + 1) * token for i, token in enumerate(completion))


def test_the_expected_gradient_is_that_of_the_kl_regularised_objective():
    """E over all pairs of RLOO's gradient = gradient of E[r] - kl_coef * KL(pi || pi_ref), to 1e-10."""
    policy, reference = BigramPolicy(3, seed=0), BigramPolicy(3, seed=1)
    every = policy.completions(LENGTH)
    objective = sum(
        policy.logprob(PROMPT, y).exp()
        * (reward_of(y) - KL_COEF * (policy.logprob(PROMPT, y) - reference.logprob(PROMPT, y).detach()))
        for y in every
    )
    exact = torch.autograd.grad(objective, policy.table)[0]
    method = make_method(policy, reference)
    expected = torch.zeros_like(exact)
    for pair in product(every, every):
        probability = sum(policy.logprob(PROMPT, y) for y in pair).exp().item()
        rewards = torch.tensor([[reward_of(y) for y in pair]], dtype=torch.float64)
        expected -= probability * pair_gradient(method, policy, pair, rewards)
    assert_close(expected, exact, rtol=0, atol=1e-10)


def test_kl_alone_pulls_towards_the_reference():
    """With equal rewards what is left is -kl_coef * grad KL: the KL part keeps its own baseline and its sign."""
    policy, reference = BigramPolicy(3, seed=0), BigramPolicy(3, seed=1)
    every = policy.completions(LENGTH)
    kl = sum(
        policy.logprob(PROMPT, y).exp() * (policy.logprob(PROMPT, y) - reference.logprob(PROMPT, y).detach())
        for y in every
    )
    exact = torch.autograd.grad(kl, policy.table)[0]
    method = make_method(policy, reference)
    total = torch.zeros_like(exact)
    for pair in product(every, every):
        probability = sum(policy.logprob(PROMPT, y) for y in pair).exp().item()
        total += probability * pair_gradient(method, policy, pair, torch.ones(1, 2, dtype=torch.float64))
    assert_close(total, KL_COEF * exact, rtol=0, atol=1e-10)


def test_the_first_step_starts_at_kl_zero_and_needs_no_ratio():
    model, reference = tiny_neox(), tiny_neox()
    method = make_method(
        model, reference, reward=lambda groups, rows: torch.arange(4.0)[None], group_size=4, eos=1, prompts=[[5, 6]]
    )
    for update in method.updates(0):
        for loss in update:
            loss().backward()
    metrics = method.metrics()
    assert metrics["kl/mean"] == 0.0
    assert metrics["reward/mean"] == 1.5
    assert metrics["shaped_reward/mean"] == 1.5


def test_without_kl_no_reference_is_asked():
    method = make_method(tiny_neox(), None, kl_coef=0.0, reward=lambda g, rows: torch.ones(1, 2), eos=1)
    for update in method.updates(0):
        for loss in update:
            loss()
    assert "kl/mean" not in method.metrics()
    assert method.metrics()["reward/zero_std_frac"] == 1.0


def test_a_cut_off_completion_pays_exactly_the_penalty():
    model = tiny_neox()
    found = make_method(
        model, model, missing_eos_penalty=2.5, reward=lambda g, rows: torch.zeros(1, 8), group_size=8, eos=1
    ).collector.collect(0)
    ended = torch.tensor([[ids[-1] == 1 for ids in found.groups.completion_lists()[0]]])
    assert not ended.all()
    assert_close(found.scores, -2.5 * (~ended))
    assert not found.rewards.any()


def test_splitting_the_step_leaves_the_gradient():
    gradients = []
    for max_tokens in (10**6, 1):
        model = tiny_neox().double()
        method = make_method(
            model, tiny_neox(seed=5).double(), group_size=4, eos=1, prompts=[[5, 6], [7], [8, 9, 10]],
            reward=lambda g, rows: g.completion_ids.double().sum(-1), max_new_tokens=6, max_tokens=max_tokens,
        )  # fmt: skip
        for update in method.updates(0):
            assert len(update) == (1 if max_tokens > 1 else 3)
            for loss in update:
                loss().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (gradients[0] - gradients[1]).norm() / gradients[0].norm() < 1e-9


@pytest.mark.parametrize("step", [0, 3])
def test_a_step_depends_on_nothing_but_its_number(step):
    def completions(first_steps):
        method = make_method(tiny_neox(), None, kl_coef=0.0, reward=lambda g, rows: torch.zeros(1, 2), eos=1)
        for earlier in first_steps:
            method.collector.collect(earlier)
        return method.collector.collect(step).groups.completion_lists()

    assert completions([]) == completions([1, 2])
