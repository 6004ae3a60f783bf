import math

import torch
from torch.nn.functional import one_hot
from torch.testing import assert_close

from rloo_core.losses.policy_gradient import reinforce_loss
from rloo_core.losses.ranking import bradley_terry_loss
from rloo_core.losses.supervised import completion_nll

RAGGED = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)


def softmax_case():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator).requires_grad_()
    tokens = torch.randint(5, (3, 4), generator=generator)
    return logits, tokens, logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)


def test_gradient_of_the_surrogate_is_the_policy_gradient():
    """d loss / d logits = -A/N * mask * (onehot - softmax), from calculus."""
    logits, tokens, logprobs = softmax_case()
    advantages = torch.tensor([1.5, -1.5, 0.5], dtype=torch.float64, requires_grad=True)
    reinforce_loss(logprobs, advantages, RAGGED, denominator=3).backward()
    expected = -(advantages / 3)[:, None, None] * RAGGED[..., None] * (one_hot(tokens, 5) - logits.softmax(-1))
    assert_close(logits.grad, expected.detach())
    assert advantages.grad is None  # rewards are data, not a path for gradients


def test_two_completions_make_the_contrast_of_the_papers_appendix():
    """K = 2: (R+ - R-)/2 * (-log pi(y+) + log pi(y-)), Ahmadian et al. 2024, App. B."""
    logprobs = torch.tensor([[[-1.0, -2.0], [-0.5, 0.0]]])
    mask = torch.tensor([[[True, True], [True, False]]])
    advantages = torch.tensor([[3.0 - 1.0, 1.0 - 3.0]])  # leave-one-out of rewards 3 and 1
    expected = (3.0 - 1.0) / 2 * (3.0 + -0.5)  # log pi(y+) = -1 - 2, log pi(y-) = -0.5
    assert_close(reinforce_loss(logprobs, advantages, mask, denominator=2), torch.tensor(expected))


def test_splitting_a_step_changes_nothing():
    logits, _, logprobs = softmax_case()
    advantages = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    whole = torch.autograd.grad(reinforce_loss(logprobs, advantages, RAGGED, 3), logits, retain_graph=True)[0]
    parts = sum(reinforce_loss(logprobs[i : i + 1], advantages[i : i + 1], RAGGED[i : i + 1], 3) for i in range(3))
    assert_close(torch.autograd.grad(parts, logits)[0], whole)


def test_nll_counts_completion_tokens_only():
    logprobs = torch.tensor([[-1.0, -2.0, -50.0, -50.0]])
    assert_close(completion_nll(logprobs, torch.tensor([[True, True, False, False]]), denominator=2), torch.tensor(1.5))


def test_bradley_terry_by_hand_and_its_gradient():
    # sigmoid(ln 3) = 3/4; d loss / d r(chosen) = -(1 - 3/4)
    chosen = torch.tensor([math.log(3.0), 0.0], requires_grad=True)
    rejected = torch.zeros(2)
    loss = bradley_terry_loss(chosen, rejected, denominator=2)
    assert_close(loss, torch.tensor((-math.log(0.75) - math.log(0.5)) / 2))
    loss.backward()
    assert_close(chosen.grad, torch.tensor([-0.125, -0.25]))


def test_bradley_terry_survives_a_huge_margin():
    assert torch.isfinite(bradley_terry_loss(torch.tensor([-1e4]), torch.tensor([1e4]), 1))
