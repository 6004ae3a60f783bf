"""The expected gradient of methods that should have none of a bias, through the real step: every completion a small
policy can sample, with its probability, in float64.
"""

from itertools import product

import pytest
import torch
from torch import nn

from rloo_core.advantages import RunningMean
from rloo_core.logprobs import reference_logprobs
from tests.rloo_core.algorithms.building import online_method, rollout_of
from tests.rloo_core.algorithms.composing import composed, take_first
from tests.rloo_core.tiny import BigramPolicy

PROMPT, VOCAB, LENGTH, KL_COEF = [1], 3, 3, 0.3


class TableCritic(nn.Module):
    """Any function of the state in which a token is chosen: here of its position and of the token before it."""

    def __init__(self):
        super().__init__()
        values = torch.randn(LENGTH, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        self.table = nn.Parameter(3 * values)

    def forward(self, groups):
        last_of_prompt = groups.prompt_ids[:, None, -1:].expand(-1, groups.group_size, 1)
        previous = torch.cat([last_of_prompt, groups.completion_ids[..., :-1]], dim=-1)
        values = self.table[torch.arange(previous.shape[-1]), previous]
        return values.masked_fill(~groups.response_mask, 0.0)


def reward_of(completion):
    return 5.0 + sum((i + 1) * token for i, token in enumerate(completion))


@pytest.fixture
def policies():
    return BigramPolicy(VOCAB, seed=0), BigramPolicy(VOCAB, seed=1)


def exact_gradient(policy, reference):
    """Of E[r] - kl_coef * KL(pi || pi_ref), from the definition of both."""
    objective = sum(
        policy.logprob(PROMPT, y).exp()
        * (reward_of(y) - KL_COEF * (policy.logprob(PROMPT, y) - reference.logprob(PROMPT, y).detach()))
        for y in policy.completions(LENGTH)
    )
    return torch.autograd.grad(objective, policy.table)[0]


def expected_gradient(name, policy, reference, group_size, **changes):
    """Sum over all groups of probability * gradient of a step with this group."""
    settings = composed(
        name, group_size=group_size, rollout_batch_size=group_size, kl_coef=KL_COEF, missing_eos_penalty=None,
        max_new_tokens=LENGTH, **changes,
    )  # fmt: skip
    critic = TableCritic() if settings.advantage == "gae" else None
    method = online_method(settings, policy, reference_logprobs(reference, 1.0), critic, prompts=[PROMPT], eos_ids=(0,))
    total = torch.zeros_like(policy.table)
    for group in product(policy.completions(LENGTH), repeat=group_size):
        method.past = RunningMean(4, -9.0)  # a past that is far from the truth
        policy.table.grad = None
        probability = sum(policy.logprob(PROMPT, y) for y in group).exp().item()
        rewards = torch.tensor([[reward_of(y) for y in group]], dtype=torch.float64)
        take_first(method, rollout_of([PROMPT], [list(group)], rewards, eos_ids=(0,)))
        total -= probability * policy.table.grad
    return total


@pytest.mark.parametrize(
    ("name", "group_size", "changes"),
    [
        ("reinforce", 1, {}),
        ("reinforce", 2, {}),
        ("vanilla_pg", 1, {}),
        ("ppo", 1, {"gae_lambda": 1.0, "whiten_advantages": False}),  # its first update
    ],
)
def test_it_is_the_gradient_of_the_objective(policies, name, group_size, changes):
    exact = exact_gradient(*policies)
    assert (expected_gradient(name, *policies, group_size, **changes) - exact).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("name", "group_size", "changes"),
    [
        ("ppo", 1, {"gae_lambda": 0.5, "whiten_advantages": False}),  # a critic that is wrong
        ("vanilla_pg", 1, {"loss_agg": "sequence_mean"}),  # tokens of short completions weigh more
        ("raft", 2, {}),
    ],
)
def test_and_of_those_with_a_known_bias_it_is_not(policies, name, group_size, changes):
    exact = exact_gradient(*policies)
    found = expected_gradient(name, *policies, group_size, **changes)
    assert ((found - exact).norm() / exact.norm()) > 0.1
