"""PPO's parts through the real step, each from its definition: whitening, value clip, temperature, lambda."""

import pytest
import torch

from rloo_core.heads import head_of
from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance, give, take_first, tiny_critic
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS, gradient_of, lines
from tests.rloo_core.tiny import tiny_neox

KL_COEF = 0.3
ROLLOUT = (PROMPTS, COMPLETIONS, REWARDS)


def make(temperature=1.0, max_tokens=10**6, **changes):
    policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
    values = {"group_size": 2, "kl_coef": KL_COEF, "missing_eos_penalty": None, "temperature": temperature}
    settings = composed("ppo", **values | changes)
    known, critic = reference_logprobs(reference, temperature), tiny_critic(policy)
    own = online_method(settings, policy, known, critic, prompts=PROMPTS, max_tokens=max_tokens)
    flat = [line for group in lines(policy, reference, critic, temperature) for line in group]
    return own, reference, flat


def advantages_of(flat, gae_lambda):
    """A[t] = sum over l of lambda^l * delta[t + l], delta[t] = r[t] + V[t + 1] - V[t], V = 0 after the end."""
    found = []
    for reward, line in zip(REWARDS.flatten().tolist(), flat, strict=True):
        values = [*line.values.detach().tolist(), 0.0]
        rewards = (-KL_COEF * (line.logprobs - line.ref_logprobs)).detach().tolist()
        rewards[-1] += reward
        deltas = [rewards[t] + values[t + 1] - values[t] for t in range(len(rewards))]
        found.append([sum(gae_lambda**i * d for i, d in enumerate(deltas[t:])) for t in range(len(deltas))])
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("max_tokens", [10**6, 1])
@pytest.mark.parametrize("whiten", [False, True])
def test_the_first_update_is_the_definition(whiten, max_tokens, temperature):
    """Whitened over all tokens of the batch, not over a micro-batch; log-probs at the sampling temperature."""
    own, _, flat = make(temperature, max_tokens, whiten_advantages=whiten)
    take_first(own, rollout_of(*ROLLOUT))
    advantages = [torch.tensor(row, dtype=torch.float64) for row in advantages_of(flat, 0.95)]
    if whiten:
        every = torch.cat(advantages)
        advantages = [(row - every.mean()) / every.std() for row in advantages]
    loss = -sum((a * line.logprobs).sum() for a, line in zip(advantages, flat, strict=True)) / 8
    assert distance(gradient(own.policy), gradient_of(loss, own.policy)) < 1e-9


@pytest.mark.parametrize(
    ("changes", "max_tokens", "passes"),
    [({}, 10**6, 2), ({"epochs_per_rollout": 3}, 10**6, 3), ({"step_batch_size": 4}, 10**6, 5), ({}, 1, 3 * 4)],
)
def test_the_first_update_goes_on_from_the_pass_that_fixed_the_advantages(changes, max_tokens, passes):
    """Where it has all completions in one micro-batch; otherwise that pass comes in addition."""
    own, _, _ = make(max_tokens=max_tokens, **changes)
    seen = dict.fromkeys(("policy", "critic"), 0)

    def count(name, module):
        def counted(*args):
            seen[name] += 1

        module.register_forward_hook(counted)

    head_of(own.policy)  # tried on the model once
    count("policy", own.policy)
    count("critic", own.critic)
    take(own, rollout_of(*ROLLOUT))
    assert seen == {"policy": passes, "critic": passes}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_before_any_update_every_ratio_is_one(temperature):
    own, _, _ = make(temperature, step_batch_size=4, epochs_per_rollout=1)
    metrics = take(own, rollout_of(*ROLLOUT))
    assert metrics["ratio/min"] == pytest.approx(1.0, abs=1e-12)
    assert metrics["ratio/max"] == pytest.approx(1.0, abs=1e-12)
    assert metrics["policy/clip_frac"] == 0.0


@pytest.mark.parametrize("clip", [None, 0.05])
def test_values_are_clipped_around_those_at_sampling(clip):
    """1/2 max((V - R)^2, (clamp(V, V_old - clip, V_old + clip) - R)^2), averaged over tokens, R = A + V_old."""
    own, reference, flat = make(whiten_advantages=False, critic_value_clip=clip)
    updates = iter(give(own, rollout_of(*ROLLOUT)).updates(0))
    next(updates)
    with torch.no_grad():
        for parameter in own.critic.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    (loss,) = next(updates)
    loss().backward()
    now = [line for group in lines(own.policy, reference, own.critic) for line in group]
    total, clipped = 0, 0
    for new, old, row in zip(now, flat, advantages_of(flat, 0.95), strict=True):
        before = old.values.detach()
        returns = torch.tensor(row, dtype=torch.float64) + before
        squares = (new.values - returns) ** 2
        if clip is not None:
            moved = before + (new.values - before).clamp(-clip, clip)
            clipped += int(((moved - returns) ** 2 > squares).sum())
            squares = torch.maximum(squares, (moved - returns) ** 2)
        total = total + squares.sum() / 2 / sum(len(line.logprobs) for line in flat)
    assert clip is None or clipped > 3
    assert distance(gradient(own.critic), gradient_of(total, own.critic)) < 1e-9
