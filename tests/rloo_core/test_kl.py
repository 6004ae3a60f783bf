import math

import torch
from torch.testing import assert_close

from rloo_core.kl import kl_shaped_rewards, sequence_kl_k1, sequence_kl_k3

LOGPROBS = torch.tensor([[[-1.0, -2.0, -9.0], [-0.5, -7.0, -7.0]]])
REF_LOGPROBS = torch.tensor([[[-1.5, -1.0, 4.0], [-0.25, 3.0, math.nan]]])
MASK = torch.tensor([[[True, True, False], [True, False, False]]])


def test_k1_is_the_log_ratio_summed_over_the_completion():
    # first: (-1 + 1.5) + (-2 + 1) = -0.5; second: -0.5 + 0.25 = -0.25; padding, NaN included, is not looked at
    assert_close(sequence_kl_k1(LOGPROBS, REF_LOGPROBS, MASK), torch.tensor([[-0.5, -0.25]]))


def test_k3_by_hand():
    # log-ratios 0.5, -1: (e^-0.5 - 1 + 0.5) + (e^1 - 1 - 1); second: -0.25: e^0.25 - 1 - 0.25
    first = math.exp(-0.5) - 0.5 + math.exp(1.0) - 2.0
    assert_close(sequence_kl_k3(LOGPROBS, REF_LOGPROBS, MASK), torch.tensor([[first, math.exp(0.25) - 1.25]]))


def test_both_estimate_the_kl():
    """Summed over every token with its probability, k1 and k3 give KL(pi || pi_ref) exactly."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 6, dtype=torch.float64, generator=generator).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    every_token = (policy[:, None], reference[:, None], torch.ones(6, 1, dtype=torch.bool))
    assert_close((policy.exp() * sequence_kl_k1(*every_token)).sum(), exact)
    assert_close((policy.exp() * sequence_kl_k3(*every_token)).sum(), exact)


def test_shaped_reward_subtracts_kl_and_carries_no_gradient():
    kl = torch.tensor([[2.0, -1.0]], requires_grad=True)
    shaped = kl_shaped_rewards(torch.tensor([[1.0, 1.0]]), kl, kl_coef=0.1)
    assert_close(shaped, torch.tensor([[0.8, 1.1]]))
    assert not shaped.requires_grad
