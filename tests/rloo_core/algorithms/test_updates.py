"""The updates of a step: how many, of which prompts, and what their losses are by definition."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from rloo_core import logprobs
from rloo_core.algorithms import online
from rloo_core.algorithms.skipping import best_alone_is_cheaper
from rloo_core.api import recipe, train_policy
from rloo_core.heads import head_of
from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.types import CompletionGroups
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance, give, take_first, tiny_critic
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS, alone, gradient_of, lines
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

KL_COEF = 0.3


def make(name, policy=None, reference=None, *, layout=Layout.PADDED, max_tokens=10**6, **changes):
    policy = policy or tiny_neox().double()
    settings = composed(name, **{"group_size": 2, "kl_coef": 0.0, "missing_eos_penalty": None} | changes)
    critic = tiny_critic(policy) if settings.advantage == "gae" else None
    known = reference_logprobs(reference, 1.0) if settings.kl_coef else None
    return online_method(settings, policy, known, critic, prompts=PROMPTS, layout=layout, max_tokens=max_tokens)


# Which prompts


def places_of_updates(own, step=0):
    """The prompts of each update."""
    give(own, rollout_of(PROMPTS, COMPLETIONS, REWARDS))
    seen = []
    loss = own._micro_loss
    own._micro_loss = lambda whole, experience, teaching, rows, over: (
        seen[-1].extend(rows),
        loss(whole, experience, teaching, rows, over),
    )[1]
    for update in own.updates(step):
        seen.append([])
        for part in update:
            part()
    return seen


@pytest.mark.parametrize(
    ("size", "epochs", "updates"), [(None, 1, 1), (8, 2, 2), (4, 1, 2), (4, 2, 4), (2, 3, 12), (None, 3, 3)]
)
@pytest.mark.parametrize("name", ["ppo", "rloo"])
def test_every_prompt_is_used_once_an_epoch_by_policy_and_critic_alike(name, size, epochs, updates):
    found = places_of_updates(make(name, step_batch_size=size, epochs_per_rollout=epochs))
    assert len(found) == updates
    assert {len(places) for places in found} == {4 * epochs // updates}
    each = updates // epochs
    for epoch in range(epochs):
        uses = Counter(place for places in found[epoch * each : (epoch + 1) * each] for place in places)
        assert uses == Counter(range(4))


def test_the_order_is_another_one_in_every_epoch_and_step_and_the_same_when_asked_again():
    def orders(step):
        found = places_of_updates(make("ppo", step_batch_size=2, epochs_per_rollout=4), step)
        flat = [place for (place,) in found]
        return [tuple(flat[i : i + 4]) for i in range(0, 16, 4)]

    assert orders(0) == orders(0)
    assert len({*orders(0), *orders(1)}) > 4


def test_prompts_that_do_not_divide_by_the_batch_are_all_used_alike():
    """Four prompts, three a step: in four steps each comes three times."""
    own = make("rloo", rollout_batch_size=6)
    groups = [own.collector.collect(step).groups for step in range(4)]
    uses = Counter(
        tuple(ids[mask].tolist()) for g in groups for ids, mask in zip(g.prompt_ids, g.prompt_mask, strict=True)
    )
    assert uses == {tuple(prompt): 3 for prompt in PROMPTS}


# What counts: one completion of eight is cut off, another one cannot be scored; four of a prompt

FOUR_PROMPTS = [PROMPTS[0], PROMPTS[2]]
FOURS = [COMPLETIONS[0] + COMPLETIONS[1], COMPLETIONS[2] + COMPLETIONS[3]]
FOUR_REWARDS = [[1.0, 3.0, -2.0, -2.5], [0.5, float("nan"), 2.0, 4.0]]
CUT_OFF, UNKNOWN = (0, 2), (1, 1)


def advantage(p, k):
    """Reward less the mean of the siblings whose reward is known."""
    siblings = [r for j, r in enumerate(FOUR_REWARDS[p]) if j != k and (p, j) != UNKNOWN]
    return FOUR_REWARDS[p][k] - sum(siblings) / len(siblings)


def definition(policy, how, left_out):
    """-sum of advantage * log-probs over what `loss_agg` says; left out, a completion counts, its tokens do not."""
    total, tokens = 0, 0
    for p, group in enumerate(FOURS):
        for k, completion in enumerate(group):
            if (p, k) in left_out:
                continue
            logprobs = alone(FOUR_PROMPTS[p], completion, policy, policy).logprobs
            weight = {"sequence_mean": 1 / len(completion), "fixed_length": 1 / 6}.get(how, 1.0)
            total = total - advantage(p, k) * weight * logprobs.sum()
            tokens += len(completion)
    return total / (tokens if how == "token_mean" else 8)


@pytest.mark.parametrize("mask_truncated", [False, True])
@pytest.mark.parametrize("how", ["sequence_sum", "sequence_mean", "token_mean", "fixed_length"])
def test_what_is_left_out_stays_in_denominators_and_baselines(how, mask_truncated):
    policy = tiny_neox().double()
    settings = composed(
        "rloo", loss_agg=how, mask_truncated=mask_truncated, kl_coef=0.0, group_size=4, missing_eos_penalty=None
    )
    own = online_method(settings, policy, prompts=FOUR_PROMPTS)
    metrics = take(own, rollout_of(FOUR_PROMPTS, FOURS, torch.tensor(FOUR_REWARDS, dtype=torch.float64)))
    left_out = {UNKNOWN, CUT_OFF} if mask_truncated else {UNKNOWN}
    expected = gradient_of(definition(policy, how, left_out), policy)
    assert distance(gradient(policy), expected) < 1e-9
    assert metrics["reward/unscorable_frac"] == 1 / 8
    assert metrics["reward/mean"] == pytest.approx(6 / 7)
    assert metrics["completion/truncated_frac"] == 1 / 8


def test_where_everything_is_left_out_loss_and_gradient_are_zero():
    policy = tiny_neox().double()
    for how in ("sequence_sum", "sequence_mean", "token_mean", "fixed_length"):
        own = make("rloo", policy, mask_truncated=True, loss_agg=how, max_new_tokens=3)
        completions = [[[3, 4, 5], [6, 7, 8]]] * 4
        take(own, rollout_of(PROMPTS, completions, REWARDS))
        assert gradient(policy).abs().max() == 0.0


# How many passes


@pytest.mark.parametrize(("max_tokens", "micro_batches"), [(10**6, 1), (28, 3), (1, 4)])
@pytest.mark.parametrize("kl_coef", [0.0, KL_COEF])
def test_strictly_on_policy_the_policy_reads_each_micro_batch_once(max_tokens, micro_batches, kl_coef):
    """Rows of 8, 7, 9 and 7 tokens, two a prompt: no pass for older log-probs, one of the reference if KL costs."""
    policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
    calls = Counter()
    for name, model in (("policy", policy), ("reference", reference)):
        assert head_of(model) is not None  # tried once a model
        model.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    own = make("rloo", policy, reference, kl_coef=kl_coef, max_tokens=max_tokens)
    take(own, rollout_of(PROMPTS, COMPLETIONS, REWARDS))
    assert calls == Counter(policy=micro_batches, reference=micro_batches if kl_coef else 0)


# What has no gradient


@pytest.mark.parametrize(
    ("name", "changes", "skipped"),
    [
        ("dr_grpo", {}, True),
        ("gspo", {}, True),
        ("dapo", {"resample_equal_rewards": 0, "overlong_buffer": None}, True),
        ("grpo", {"kl_coef": 0.1}, False),  # the KL in its loss pulls at every completion
        ("ppo", {}, False),  # and so does the value loss
    ],
)
def test_groups_without_advantage_are_left_out_of_later_passes(name, changes, skipped, monkeypatch):
    """Two of four groups have equal rewards; gradients and losses are those of all groups."""
    rewards = REWARDS.clone()
    rewards[[0, 2]] = 1.0

    def run():
        policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
        own, rows = make(name, policy, reference, epochs_per_rollout=2, step_batch_size=4, **changes), []
        forward = own._forward
        own._forward = lambda groups: (rows.append(groups.completion_ids.shape[0]), forward(groups))[1]
        metrics = take(own, rollout_of(PROMPTS, COMPLETIONS, rewards))
        return sum(rows), gradient(policy), metrics["loss/policy"]

    passes, found, loss = run()
    monkeypatch.setattr(online, "teaches", lambda settings, experience, mask: torch.ones(mask.shape[:2]).bool())
    every, expected, whole = run()
    assert every == 4 + 2 * 4
    assert (passes < every) is skipped
    assert distance(found, expected) < 1e-12
    assert loss == pytest.approx(whole, abs=1e-12)


def gradient_tokens(monkeypatch):
    """Tokens of every pass that keeps a graph, from now on."""
    seen, make_rows = [], logprobs.make_rows

    def noted(*arguments):
        rows = make_rows(*arguments)
        if torch.is_grad_enabled():
            seen.append(rows.inputs["input_ids"].numel())
        return rows

    monkeypatch.setattr(logprobs, "make_rows", noted)
    return seen


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("kl_coef", [0.0, KL_COEF])
def test_raft_learns_from_the_best_completions_alone(layout, kl_coef, monkeypatch):
    """Their prompts and themselves pass with a gradient, which is that of a pass over all; so are the metrics.

    A prompt a micro-batch, best completions of 6 + 2, 1 + 3, 3 + 4 and 5 + 3 tokens without KL.
    """
    four = [[*group, [*group[0], 1], [4, 4, 1]] for group in COMPLETIONS]
    rewards = torch.tensor([[1.0, 3.0, 0, 0], [2.0, 0, 0, 3.0], [0, 1.0, 0, 0], [4.0, 0, 0, 0]], dtype=torch.float64)
    seen = gradient_tokens(monkeypatch)

    def run():
        policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
        own = make("raft", policy, reference, layout=layout, max_tokens=1, group_size=4, kl_coef=kl_coef)
        metrics = take(own, rollout_of(PROMPTS, four, rewards))
        return gradient(policy), metrics

    found, metrics = run()
    few = list(seen)
    monkeypatch.setattr(online, "best_alone_is_cheaper", lambda *arguments: False)
    expected, whole = run()
    every = seen[len(few) :]
    if not kl_coef:
        best = [len(p) + len(c[i]) for p, c, i in zip(PROMPTS, four, (1, 3, 1, 0), strict=True)]
        assert sorted(few) == sorted(best)
    assert len(few) == len(every) == 4
    assert sum(few) < sum(every) / 2
    assert distance(found, expected) < 1e-12
    assert metrics == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("name", ["dr_grpo", "gspo", "dapo"])
def test_single_completions_without_advantage_are_left_out_too(name, layout, monkeypatch):
    """Of three rewards in a group the middle one is the mean; gradient and loss are those of all three."""
    three = [[*group, [4, 4, 1]] for group in COMPLETIONS]
    rewards = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [5.0, 4.0, 6.0], [0.0, 1.0, 1.5]], dtype=torch.float64)
    seen = gradient_tokens(monkeypatch)

    def run():
        own = make(
            name, policy := tiny_neox().double(), layout=layout, group_size=3, rollout_batch_size=12,
            epochs_per_rollout=2, step_batch_size=6, resample_equal_rewards=0, overlong_buffer=None,
        )  # fmt: skip
        loss = take(own, rollout_of(PROMPTS, three, rewards))["loss/policy"]
        return gradient(policy), loss

    found, loss = run()
    few = sum(seen)
    monkeypatch.setattr(online, "teaches", lambda settings, experience, mask: torch.ones(mask.shape[:2]).bool())
    expected, whole = run()
    assert few < sum(seen) - few
    assert distance(found, expected) < 1e-12
    assert loss == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(
    ("layout", "prompt", "tokens", "group_size", "cheaper"),
    [
        (Layout.SHARED, 4, 4, 2, False),  # S < (2K - 3) T
        (Layout.SHARED, 3, 4, 2, True),
        (Layout.SHARED, 20, 4, 4, False),
        (Layout.SHARED, 19, 4, 4, True),
        (Layout.PADDED, 20, 1, 2, True),
        (Layout.PADDED, 20, 1, 1, False),
    ],
)
def test_when_it_pays_to_look_for_the_best_first(layout, prompt, tokens, group_size, cheaper):
    groups = CompletionGroups.from_ids([[3] * prompt] * 2, [[[4] * tokens] * group_size] * 2, 0)
    settings = composed("raft", group_size=group_size)
    assert best_alone_is_cheaper(settings, groups, layout) is cheaper
    assert not best_alone_is_cheaper(composed("rloo"), groups, layout)
    assert not best_alone_is_cheaper(composed("raft", kl_place="loss", kl_coef=0.1), groups, layout)


# Completions from rounded weights


@pytest.mark.parametrize("cap", [0.9, 1.5, 100.0])
@pytest.mark.parametrize(("name", "changes"), [("rloo", {}), ("dr_grpo", {"epochs_per_rollout": 2})])
def test_completions_of_rounded_weights_weigh_by_their_truncated_likelihood_ratio(name, changes, cap):
    """-1/N sum of min(pi / pi_sampler, cap) A log pi: here pi_sampler is known to be off by given factors."""
    policy = tiny_neox().double()
    own = make(name, policy, sampler_cap=cap, loss_agg="sequence_sum", ratio="none", clip=None, **changes)
    flat = [line.logprobs for group in lines(policy, policy) for line in group]
    factors = torch.tensor([0.5, 2.0, 1.0, 1.2, 0.8, 3.0, 1.0, 0.1], dtype=torch.float64)
    sampled = torch.stack([line.sum().detach() for line in flat]) - factors.log()
    rollout = replace(rollout_of(PROMPTS, COMPLETIONS, REWARDS), sampled=sampled.view(4, 2))
    take_first(own, rollout)
    advantages = REWARDS - REWARDS.flip(1) if name == "rloo" else REWARDS - REWARDS.mean(1, keepdim=True)
    weights = factors.clamp(max=cap) * advantages.flatten()
    loss = -sum(w * line.sum() for w, line in zip(weights, flat, strict=True)) / 8
    assert distance(gradient(policy), gradient_of(loss, policy)) < 1e-9


def test_how_far_the_sampler_is_off_is_the_mean_distance_of_log_probs():
    """Factors of 1/2, 2, 1, 4 a completion, twice: (ln 2 + ln 2 + 0 + 2 ln 2)/4."""
    policy = tiny_neox().double()
    flat = torch.stack([line.logprobs.sum().detach() for group in lines(policy, policy) for line in group])
    sampled = flat - torch.tensor([0.5, 2.0, 1.0, 4.0] * 2, dtype=torch.float64).log()
    rollout = replace(rollout_of(PROMPTS, COMPLETIONS, REWARDS), sampled=sampled.view(4, 2))
    assert take(make("rloo", policy), rollout)["sampler/log_ratio_abs_mean"] == pytest.approx(math.log(2))
    assert "sampler/log_ratio_abs_mean" not in take(make("rloo"), rollout_of(PROMPTS, COMPLETIONS, REWARDS))


def test_a_correction_that_nothing_would_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="sampler_cap"):
        recipe("raft", sampler_cap=2.0)
    with pytest.raises(ValueError, match="nothing to correct"):
        train_policy(tiny_neox(), tiny_tokenizer(), ["w3"], len, recipe("rloo", sampler_cap=2.0), tmp_path)


# KL in the loss


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_loss_is_differentiable(estimator):
    """Equal rewards: what is left is kl_coef * the mean over completions of the estimates, differentiated."""
    policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
    own = make("rloo", policy, reference, kl_coef=KL_COEF, kl_place="loss", kl_estimator=estimator)
    metrics = take(own, rollout_of(PROMPTS, COMPLETIONS, torch.ones(4, 2, dtype=torch.float64)))
    total = 0
    for line in (line for group in lines(policy, reference) for line in group):
        d = line.logprobs - line.ref_logprobs
        total = total + {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[estimator].sum() / 8
    assert distance(gradient(policy), gradient_of(KL_COEF * total, policy)) < 1e-9
    assert metrics["shaped_reward/mean"] == 1.0  # the reward is left alone
    assert metrics["loss/kl"] == pytest.approx(KL_COEF * total.item(), rel=1e-6)


def test_kl_in_the_reward_is_not():
    """A policy whose KL differs between completions, but rewards that make up for it: no gradient at all."""
    policy, reference = tiny_neox().double(), tiny_neox(seed=5).double()
    kl = [[(li.logprobs - li.ref_logprobs).sum().item() for li in group] for group in lines(policy, reference)]
    own = make("rloo", policy, reference, kl_coef=KL_COEF)
    metrics = take(own, rollout_of(PROMPTS, COMPLETIONS, KL_COEF * torch.tensor(kl, dtype=torch.float64)))
    assert abs(metrics["kl/mean"]) > 0.1
    assert gradient(policy).abs().max() < 1e-9


def test_the_estimator_that_is_shown_can_be_chosen():
    rollout = rollout_of(PROMPTS, COMPLETIONS, REWARDS)
    found = [
        take(make("rloo", tiny_neox().double(), tiny_neox(seed=5).double(), kl_coef=KL_COEF, kl_monitor=name), rollout)
        for name in ("k1", "k2", "k3")
    ]
    for name, metrics in zip(("k1", "k2", "k3"), found, strict=True):
        assert metrics["kl/mean"] == metrics[f"kl/{name}_mean"]
        assert metrics["shaped_reward/mean"] == found[0]["shaped_reward/mean"]  # k1 always
    assert len({metrics["kl/mean"] for metrics in found}) == 3
