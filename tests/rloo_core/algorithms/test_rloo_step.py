"""One step of RLOO by hand: three prompts, ragged, at temperature 0.7, with two EOS ids, in one batch or in three."""

import pytest
import torch
from torch.testing import assert_close

from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import algorithm_settings, online_method, rollout_of, take
from tests.rloo_core.tiny import BigramPolicy, tiny_neox

TEMPERATURE, KL_COEF = 0.7, 0.3
EOS_IDS = (0, 4)
PROMPTS = [[1, 2], [3], [2, 3, 1]]
COMPLETIONS = [[[1, 0], [2, 2, 3, 4]], [[3, 3, 3], [0]], [[4], [1, 2, 1, 2]]]  # two are cut off
REWARDS = [[1.0, 3.0], [-2.0, -2.0], [0.5, 0.0]]  # the second prompt has equal ones
LENGTHS = [[2, 4], [3, 1], [1, 4]]


def make_method(policy, reference=None, max_tokens=10**6, prompts=PROMPTS, **changes):
    values = {"kl_coef": KL_COEF, "temperature": TEMPERATURE, "max_new_tokens": 4}
    values |= {"rollout_batch_size": len(prompts) * changes.get("group_size", 2)} | changes
    others = {name: values.pop(name) for name in ("reward", "rows", "eos_ids") if name in values}
    return online_method(
        algorithm_settings(**values), policy, reference, prompts=prompts, max_tokens=max_tokens,
        **({"eos_ids": EOS_IDS} | others),
    )  # fmt: skip


@pytest.fixture
def policy():
    return BigramPolicy(5, seed=0)


@pytest.fixture
def reference():
    return BigramPolicy(5, seed=1)


def log_softmax(model):
    return (model.table / TEMPERATURE).log_softmax(-1)


def bigrams(prompt, completion):
    return zip([prompt[-1], *completion[:-1]], completion, strict=True)


def logprob(model, prompt, completion):
    return sum(log_softmax(model)[before, token] for before, token in bigrams(prompt, completion))


def entropy(model, prompt, completion):
    rows = [log_softmax(model)[before] for before, _ in bigrams(prompt, completion)]
    return sum(-(row.exp() * row).sum() for row in rows)


def shaped_rewards(policy, reference):
    """Reward - kl_coef * log-ratio, and the log-ratios. [P][K]"""
    ratios = [
        [(logprob(policy, x, y) - logprob(reference, x, y)).item() for y in group]
        for x, group in zip(PROMPTS, COMPLETIONS, strict=True)
    ]
    shaped = [[r - KL_COEF * d for r, d in zip(*row, strict=True)] for row in zip(REWARDS, ratios, strict=True)]
    return shaped, ratios


def take_step(policy, reference, max_tokens):
    """Gradient and metrics of a step whose rollout is the one above."""
    method = make_method(policy, reference_logprobs(reference, TEMPERATURE), max_tokens)
    rollout = rollout_of(PROMPTS, COMPLETIONS, torch.tensor(REWARDS, dtype=torch.float64), EOS_IDS)
    metrics = take(method, rollout)
    return policy.table.grad, metrics


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_the_gradient_is_the_definition(policy, reference, max_tokens):
    """-1/6 * sum of (shaped reward - its sibling's) * grad log pi at the sampling temperature."""
    shaped, _ = shaped_rewards(policy, reference)
    objective = sum(
        (shaped[p][k] - shaped[p][1 - k]) * logprob(policy, PROMPTS[p], COMPLETIONS[p][k]) / 6
        for p in range(3)
        for k in range(2)
    )
    expected = torch.autograd.grad(-objective, policy.table)[0]
    assert_close(take_step(policy, reference, max_tokens)[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_the_metrics_are_those_of_the_whole_step(policy, reference, max_tokens):
    shaped, ratios = shaped_rewards(policy, reference)
    pairs = [(x, y) for x, group in zip(PROMPTS, COMPLETIONS, strict=True) for y in group]
    metrics = take_step(policy, reference, max_tokens)[1]
    k3 = [
        sum(
            (log_softmax(reference)[a, b] - log_softmax(policy)[a, b]).exp()
            - 1
            + (log_softmax(policy)[a, b] - log_softmax(reference)[a, b])
            for a, b in bigrams(x, y)
        ).item()
        for x, y in pairs
    ]
    k2 = [
        sum((log_softmax(policy)[a, b] - log_softmax(reference)[a, b]) ** 2 / 2 for a, b in bigrams(x, y)).item()
        for x, y in pairs
    ]
    advantages = [row[k] - row[1 - k] for row in shaped for k in range(2)]
    expected = {
        "reward/mean": (1 + 3 - 2 - 2 + 0.5 + 0) / 6,
        "reward/std": torch.tensor([1.0, 3, -2, -2, 0.5, 0]).std().item(),
        "reward/group_std": (2 / 2**0.5 + 0 + 0.5 / 2**0.5) / 3,  # of two numbers: their distance / sqrt 2
        "reward/zero_std_frac": 1 / 3,
        "shaped_reward/mean": sum(map(sum, shaped)) / 6,
        "advantage/std": torch.tensor(advantages).std().item(),
        "completion/length_mean": (2 + 4 + 3 + 1 + 1 + 4) / 6,
        "completion/truncated_frac": 2 / 6,
        "policy/entropy": sum(entropy(policy, x, y) for x, y in pairs).item() / 15,  # 15 tokens
        "kl/mean": sum(map(sum, ratios)) / 6,
        "kl/k3_mean": sum(k3) / 6,
        "kl/k2_mean": sum(k2) / 6,
    }
    assert expected["kl/mean"] != pytest.approx(expected["kl/k3_mean"], rel=0.1)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def neox_method(**changes):
    values = {"prompts": [[5, 6], [7], [8, 9, 10], [11], [12, 13]], "kl_coef": 0.0}
    return make_method(tiny_neox(), **(values | {"max_new_tokens": 6, "eos_ids": (1, 4)} | changes))


def test_each_completion_is_scored_with_the_row_of_its_own_prompt():
    seen = []

    def reward(groups, rows):
        prompts = [ids[mask].tolist() for ids, mask in zip(groups.prompt_ids, groups.prompt_mask, strict=True)]
        seen.append((prompts, [row["prompt"] for row in rows]))
        return torch.zeros(groups.completion_ids.shape[:2])

    method = neox_method(reward=reward)
    for step in range(5):
        method.collector.collect(step)
    assert all(prompts == rows for prompts, rows in seen)
    assert len({tuple(map(tuple, rows)) for _, rows in seen}) > 1  # not in the order of the table every time


def test_every_prompt_has_its_turn_before_any_comes_again():
    method = neox_method(rollout_batch_size=2)
    first, second = (
        [method.collector.collect(step).groups.prompt_ids[0].tolist() for step in range(start, start + 5)]
        for start in (0, 5)
    )
    assert sorted(first) == sorted(second) == sorted(method.collector.prompts)
    assert first != second


def test_no_two_completions_share_random_numbers():
    """The same prompt in three places of two steps, four times each: 24 different completions of 20 tokens."""
    method = neox_method(prompts=[[5, 6]] * 3, group_size=4, max_new_tokens=20, temperature=1.0, eos_ids=(1,))
    groups = [group for step in (0, 1) for group in method.collector.collect(step).groups.completion_lists()]
    found = [tuple(ids) for group in groups for ids in group]
    long_enough = [ids for ids in found if len(ids) > 5]  # short ones may agree by chance
    assert len(long_enough) > 12
    assert len(set(long_enough)) == len(long_enough)


@pytest.mark.parametrize(("rule", "charged"), [("subtract", 7.0 - 2.5), ("replace", -2.5)])
def test_only_completions_that_reached_none_of_the_eos_ids_pay_the_penalty(rule, charged):
    def seven(groups, rows):
        return torch.full(groups.completion_ids.shape[:2], 7.0)

    found = neox_method(missing_eos=rule, missing_eos_penalty=2.5, group_size=8, reward=seven).collector.collect(0)
    last = [[ids[-1] for ids in group] for group in found.groups.completion_lists()]
    assert {1, 4} < {token for group in last for token in group}
    assert found.scores.tolist() == [[7.0 if token in (1, 4) else charged for token in group] for group in last]
