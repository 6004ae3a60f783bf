"""How a step is split into micro-batches, or whether one pass or two give its numbers, changes no gradient."""

import pytest
import torch

from rloo_core.advantages import RunningMean
from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.dpo import PreferenceOptimisation
from rloo_core.batching import token_budget_batches
from rloo_core.layout import Layout, tokens_held
from rloo_core.logprobs import reference_logprobs
from rloo_core.processes import Processes
from tests.rloo_core.algorithms.building import gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.composing import composed, distance, tiny_critic
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, REWARDS
from tests.rloo_core.tiny import tiny_neox

ONLINE = ("rloo", "reinforce", "ppo", "vanilla_pg", "raft")
AGGREGATIONS = ("sequence_sum", "sequence_mean", "token_mean", "fixed_length")
CASES = [(name, how) for name in ONLINE for how in AGGREGATIONS if name != "raft" or how == "sequence_sum"]
FAMILY = {
    "grpo": {}, "dr_grpo": {}, "gspo": {}, "dapo": {},
    "rloo": {"ratio": "sequence", "ratio_cap": 2.0, "epochs_per_rollout": 2},
    "reinforce": {"ratio": "token", "ratio_cap": 1.5, "epochs_per_rollout": 2},
}  # fmt: skip
HELD = tokens_held(
    [len(p) for p in PROMPTS], [[len(ids) for ids in group] for group in COMPLETIONS], Layout.SHARED, tiny_neox().config
)


def budget(batches: int) -> int:
    """The largest token budget that splits the step into so many micro-batches."""
    return max(tokens for tokens in range(1, 200) if len(token_budget_batches(4, HELD, tokens)) == batches)


def online(name, max_tokens, **changes):
    policy, reference = tiny_neox(seed=0).double(), tiny_neox(seed=5).double()
    settings = composed(name, group_size=2, kl_coef=0.3, missing_eos_penalty=None, **changes)
    critic = tiny_critic(policy, layout=Layout.SHARED) if settings.advantage == "gae" else None
    method = online_method(
        settings, policy, reference_logprobs(reference, settings.temperature), critic, prompts=PROMPTS,
        max_tokens=max_tokens, layout=Layout.SHARED,
    )  # fmt: skip
    return method, [policy, *([critic] if critic else [])]


def step(method, models, rewards=REWARDS):
    """Gradient and metrics of the given step."""
    metrics = take(method, rollout_of(PROMPTS, COMPLETIONS, rewards))
    return gradient(*models), metrics


def pairs(name, max_tokens):
    policy, reference = tiny_neox(seed=0).double(), tiny_neox(seed=5).double()
    given = GivenCompletions(PROMPTS, COMPLETIONS, 0, max_tokens, Layout.SHARED, policy.config)
    settings = composed("dpo", surrogate=name, dpo_label_smoothing=0.1 if name == "dpo" else 0.0)
    method = PreferenceOptimisation(
        settings, policy, reference_logprobs(reference, 1.0), given, given, Layout.SHARED, Processes(), dict
    )
    (update,) = method.updates(0)
    for loss in update:
        loss().backward()
    return len(update), gradient(policy), method.metrics()


@pytest.mark.parametrize("unscorable", [False, True])
@pytest.mark.parametrize(("name", "how"), CASES)
def test_online_methods(name, how, unscorable):
    rewards = REWARDS.clone()
    if unscorable:
        rewards[1, 0] = torch.nan
    found = []
    for batches in (1, 2, 4):
        method, models = online(name, budget(batches), loss_agg=how, mask_truncated=unscorable and name != "raft")
        found.append(step(method, models, rewards))
        assert len(method._batches(rollout_of(PROMPTS, COMPLETIONS, REWARDS), range(4))) == batches
    for other, metrics in found[1:]:
        assert distance(other, found[0][0]) < 1e-9
        assert metrics == pytest.approx(found[0][1], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", FAMILY)
def test_methods_with_a_ratio(name):
    """As published; with one group's rewards equal and one completion unscorable."""
    rewards = REWARDS.clone()
    rewards[0], rewards[1, 0] = 1.0, torch.nan
    found = [step(*online(name, budget(batches), **FAMILY[name]), rewards) for batches in (1, 2, 4)]
    assert found[0][0].norm() > 0
    for other, metrics in found[1:]:
        assert distance(other, found[0][0]) < 1e-9
        assert metrics == pytest.approx(found[0][1], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", ["dpo", "ipo"])
def test_pairs(name):
    found = [pairs(name, budget(batches)) for batches in (1, 2, 4)]
    assert [batches for batches, _, _ in found] == [1, 2, 4]
    for _, other, metrics in found[1:]:
        assert distance(other, found[0][1]) < 1e-9
        assert metrics == pytest.approx(found[0][2], rel=1e-5)


@pytest.mark.parametrize("name", ["rloo", "reinforce", "vanilla_pg"])
def test_numbers_of_the_update_itself_are_those_of_a_pass_before_it(name):
    """Strictly on-policy methods need no pass of their own for shaped rewards and advantages."""
    found = []
    for one_pass in (True, False):
        method, models = online(name, budget(2))
        method.past = RunningMean(3, 1.0)
        assert method._one_pass_suffices()
        method._one_pass_suffices = lambda one_pass=one_pass: one_pass
        found.append(step(method, models))
    assert distance(found[0][0], found[1][0]) < 1e-9
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "changes", "one"),
    [
        ("rloo", {}, True),
        ("rloo", {"whiten_advantages": True}, False),
        ("rloo", {"epochs_per_rollout": 2}, False),
        ("rloo", {"step_batch_size": 4}, False),
        ("reinforce", {}, False),  # the first batch is compared with itself
        ("vanilla_pg", {}, True),
        ("ppo", {}, False),
    ],
)
def test_what_depends_on_the_batch_or_on_older_weights_takes_a_pass_of_its_own(name, changes, one):
    assert online(name, 1000, **changes)[0]._one_pass_suffices() is one
