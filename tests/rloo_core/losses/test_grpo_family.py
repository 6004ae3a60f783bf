"""GRPO, Dr. GRPO, GSPO and DAPO from their parts, against numbers worked out by hand and slow loops."""

import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.advantages import group_mean, group_standardised
from rloo_core.kl import kl_per_token
from rloo_core.losses.aggregation import aggregate
from rloo_core.losses.policy_gradient import clipped_terms, importance_ratio

MASK = torch.tensor([[True, True, False], [True, False, False]])
RATIOS = torch.tensor([[1.5, 0.9, 1.0], [0.5, 1.0, 1.0]])
ADVANTAGES = torch.tensor([1.0, -1.0])


def ratio(level):
    logprobs = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]])
    return importance_ratio(logprobs, logprobs - RATIOS.log(), MASK, level)


def test_grpo_by_hand():
    # clip 0.2: -min(1.5, 1.2), -0.9 | -min(-0.5, -0.8); token means -1.05 and 0.8
    terms = clipped_terms(ratio("token"), ADVANTAGES, 0.2, 0.2)
    assert_close(aggregate(terms, MASK, "sequence_mean", 2), torch.tensor((-1.05 + 0.8) / 2))


def test_dr_grpo_by_hand():
    terms = clipped_terms(ratio("token"), ADVANTAGES, 0.2, 0.2)
    assert_close(aggregate(terms, MASK, "fixed_length", 2, max_length=5), torch.tensor((-1.2 - 0.9 + 0.8) / (5 * 2)))


def test_dapo_by_hand():
    # clip-higher 0.28 lets 1.28 through; three tokens weigh the same
    terms = clipped_terms(ratio("token"), ADVANTAGES, 0.2, 0.28)
    assert_close(aggregate(terms, MASK, "token_mean", 3), torch.tensor((-1.28 - 0.9 + 0.8) / 3))


def test_gspo_by_hand():
    # the first completion's ratio is sqrt(1.5 * 0.9), inside 1.2; the second's is 0.5, cut at 0.8
    terms = clipped_terms(ratio("sequence_mean"), ADVANTAGES, 0.2, 0.2)
    assert_close(aggregate(terms, MASK, "sequence_mean", 2), torch.tensor((-math.sqrt(1.35) + 0.8) / 2))


def test_gspos_gradient_by_hand():
    """d loss / d log pi(y_t) = -A * s / length / N where the clip does not bind, 0 where it does and at padding."""
    logprobs = torch.tensor([[-1.0, -2.0, -9.0], [-3.0, -9.0, -9.0]], requires_grad=True)
    s = importance_ratio(logprobs, logprobs.detach() - RATIOS.log(), MASK, "sequence_mean")
    aggregate(clipped_terms(s, ADVANTAGES, 0.2, 0.2), MASK, "sequence_mean", 2).backward()
    slope = -math.sqrt(1.35) / 2 / 2
    assert_close(logprobs.grad, torch.tensor([[slope, slope, 0.0], [0.0, 0.0, 0.0]]))


@pytest.mark.parametrize("scaled", [True, False])
def test_grpos_loss_as_the_paper_writes_it(scaled):
    """Shao et al. 2024, Eq. 3 with the k3 of Eq. 4, as loops over prompts, completions and tokens."""
    generator = torch.Generator().manual_seed(0)
    logprobs, old, ref = -3 * torch.rand(3, 2, 4, 5, dtype=torch.float64, generator=generator)
    rewards = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    lengths = torch.randint(1, 6, (2, 4, 1), generator=generator)
    mask = torch.arange(5) < lengths
    advantages = group_standardised(rewards) if scaled else group_mean(rewards)
    terms = clipped_terms(importance_ratio(logprobs, old, mask, "token"), advantages, 0.2, 0.2)
    terms = terms + 0.04 * kl_per_token(logprobs, ref, "k3", mask)
    found = aggregate(terms, mask, "sequence_mean", 8)

    total = 0.0
    for p in range(2):
        group = rewards[p].tolist()
        mean = sum(group) / 4
        std = math.sqrt(sum((r - mean) ** 2 for r in group) / 3) + 1e-4
        for k in range(4):
            advantage = (group[k] - mean) / (std if scaled else 1.0)
            length = int(lengths[p, k])
            for t in range(length):
                lp, lo, lr = (x[p, k, t].item() for x in (logprobs, old, ref))
                r = math.exp(lp - lo)
                surrogate = min(r * advantage, min(max(r, 0.8), 1.2) * advantage)
                kl = math.exp(lr - lp) - (lr - lp) - 1
                total -= (surrogate - 0.04 * kl) / length / 8
    assert found.item() == pytest.approx(total, rel=1e-12)
