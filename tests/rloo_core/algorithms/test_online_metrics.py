"""Metrics by hand: of a PPO step whose policy moves between its updates, and of RAFT."""

import pytest
import torch

from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance, give, tiny_critic
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS, gradient_of, lines
from tests.rloo_core.tiny import tiny_neox

KL_COEF, CLIP = 0.3, 0.05
TOKENS = [len(ids) for group in COMPLETIONS for ids in group]


def make(name, max_tokens=10**6, **changes):
    policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
    settings = composed(name, **{"group_size": 2, "kl_coef": KL_COEF, "missing_eos_penalty": None} | changes)
    critic = tiny_critic(policy) if settings.advantage == "gae" else None
    known = reference_logprobs(reference, 1.0)
    return online_method(settings, policy, known, critic, prompts=PROMPTS, max_tokens=max_tokens), reference


def known_lines(own, reference):
    return [line for group in lines(own.policy, reference, own.critic) for line in group]


def move(policy):
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


def std(values):
    return torch.tensor(values, dtype=torch.float64).std().item()


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_ppo(max_tokens):
    own, reference = make("ppo", max_tokens, gae_lambda=1.0, whiten_advantages=False, clip=CLIP, critic_value_clip=None)
    before = known_lines(own, reference)
    run_with_a_move_between(own)
    after = known_lines(own, reference)
    kl = [(li.logprobs - li.ref_logprobs).detach() for li in before]
    rewards = REWARDS.flatten().tolist()
    returns = [
        torch.stack([r - KL_COEF * d[t:].sum() for t in range(len(d))]) for r, d in zip(rewards, kl, strict=True)
    ]
    values = [line.values.detach() for line in before]
    advantages = [r - v for r, v in zip(returns, values, strict=True)]
    ratios = [(new.logprobs - old.logprobs).exp().detach() for new, old in zip(after, before, strict=True)]
    all_ratios = [1.0] * sum(TOKENS) + torch.cat(ratios).tolist()
    terms = [
        (torch.minimum(a * r, a * r.clamp(1 - CLIP, 1 + CLIP)), a * r) for a, r in zip(advantages, ratios, strict=True)
    ]
    clipped = sum(int((term != plain).sum()) for term, plain in terms)
    losses = [-sum(a.sum().item() for a in advantages) / 8, -sum(term.sum().item() for term, _ in terms) / 8]
    v, r = torch.cat(values), torch.cat(returns)
    expected = {
        "reward/mean": sum(rewards) / 8,
        "shaped_reward/mean": sum(r - KL_COEF * d.sum().item() for r, d in zip(rewards, kl, strict=True)) / 8,
        "advantage/std": std(torch.cat(advantages).tolist()),
        "completion/length_mean": sum(TOKENS) / 8,
        "completion/finished_frac": 7 / 8,
        "completion/truncated_frac": 1 / 8,
        "kl/mean": sum(d.sum().item() for d in kl) / 8,
        "ratio/mean": sum(all_ratios) / len(all_ratios),
        "ratio/std": std(all_ratios),
        "ratio/max": max(all_ratios),
        "ratio/min": min(all_ratios),
        "policy/clip_frac": clipped / len(all_ratios),
        "loss/policy": sum(losses) / 2,
        "loss/critic": 0.5 * ((v - r) ** 2).mean().item(),
        "critic/value_mean": v.mean().item(),
        "critic/explained_variance": 1 - ((r - v).var() / r.var()).item(),
    }
    assert 0 < clipped < sum(TOKENS)
    found = own.metrics()
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert own.tokens == sum(TOKENS)


def run_with_a_move_between(own):
    """Both updates of the step, without gradient; the policy moves after the first."""
    for index, update in enumerate(give(own, rollout_of(PROMPTS, COMPLETIONS, REWARDS)).updates(0)):
        for loss in update:
            loss()
        if index == 0:
            move(own.policy)


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_raft_imitates_the_best_of_every_prompt_by_the_shaped_reward(max_tokens):
    """The second prompt's rewards are all below the others': it has a winner, too."""
    rewards = torch.tensor([[1.0, 1.5], [-9.0, -9.5], [5.0, 5.0], [2.0, 4.0]], dtype=torch.float64)
    own, reference = make("raft", max_tokens)
    pairs = lines(own.policy, reference)
    shaped = [
        [r - KL_COEF * (li.logprobs - li.ref_logprobs).sum().item() for r, li in zip(row, group, strict=True)]
        for row, group in zip(rewards.tolist(), pairs, strict=True)
    ]
    winners = [row.index(max(row)) for row in shaped]
    assert winners != [row.index(max(row)) for row in rewards.tolist()]  # KL decides somewhere
    metrics = take(own, rollout_of(PROMPTS, COMPLETIONS, rewards))
    loss = -sum(group[best].logprobs.sum() for group, best in zip(pairs, winners, strict=True)) / 4
    assert distance(gradient(own.policy), gradient_of(loss, own.policy)) < 1e-9
    expected = {
        "loss/policy": loss.item(),
        "shaped_reward/mean": sum(map(sum, shaped)) / 8,
        "advantage/std": std([1.0, 0.0] * 4),
        "reward/zero_std_frac": 1 / 4,
        "reward/group_std": (0.5 + 0.5 + 0 + 2) / 4 / 2**0.5,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_binary_rewards_of_pairs_are_often_equal_and_this_is_shown():
    own, _ = make("rloo")
    metrics = take(
        own, rollout_of(PROMPTS, COMPLETIONS, torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    )
    assert metrics["reward/zero_std_frac"] == 0.75


def test_where_all_returns_are_equal_there_is_no_variance_to_explain_and_training_goes_on():
    own, _ = make("vanilla_pg", kl_coef=0.0)
    own.reference = None
    metrics = take(own, rollout_of(PROMPTS, COMPLETIONS, torch.ones(4, 2)))
    assert "critic/explained_variance" not in metrics
    assert all(value == value for value in metrics.values())


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("rloo", {}, {"loss/policy"}),
        ("rloo", {"kl_place": "loss", "kl_estimator": "k3"}, {"loss/policy", "loss/kl"}),
        ("ppo", {}, {"loss/policy", "loss/critic"}),
    ],
)
def test_a_loss_is_shown_where_it_acts_also_at_zero(name, changes, expected):
    """Equal rewards, and a policy that is its own reference: rloo's loss and its KL are exactly 0, and are shown."""
    own, _ = make(name, **changes)
    own.reference = reference_logprobs(own.policy, 1.0)
    metrics = take(own, rollout_of(PROMPTS, COMPLETIONS, torch.ones(4, 2, dtype=torch.float64)))
    assert {key for key in metrics if key.startswith("loss/")} == expected
    assert name == "ppo" or metrics["loss/policy"] == 0.0
