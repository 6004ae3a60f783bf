import math

import pytest
import torch
from torch.nn.functional import one_hot
from torch.testing import assert_close

from rloo_core.losses.aggregation import aggregate
from rloo_core.losses.policy_gradient import (
    clip_fraction,
    clipped_terms,
    corrected_terms,
    importance_ratio,
    reinforce_loss,
    reinforce_terms,
)
from tests.rloo_core.losses.cases import RAGGED, softmax_case

LEVELS = ("token", "sequence", "sequence_mean")
ADVANTAGES = torch.tensor([1.5, -1.5, 0.5], dtype=torch.float64)


def gradient(loss, logits):
    return torch.autograd.grad(loss, logits, retain_graph=True)[0]


def test_gradient_of_the_surrogate_is_the_policy_gradient():
    """d loss / d logits = -A/N * mask * (onehot - softmax), from calculus."""
    logits, tokens, logprobs = softmax_case()
    advantages = ADVANTAGES.clone().requires_grad_()
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
    whole = gradient(reinforce_loss(logprobs, ADVANTAGES, RAGGED, 3), logits)
    parts = sum(reinforce_loss(logprobs[i : i + 1], ADVANTAGES[i : i + 1], RAGGED[i : i + 1], 3) for i in range(3))
    assert_close(gradient(parts, logits), whole)


def test_terms_of_tokens_add_up_to_the_completion():
    logits, _, logprobs = softmax_case()
    loss = aggregate(reinforce_terms(logprobs, ADVANTAGES), RAGGED, "sequence_sum", 3)
    assert_close(loss, reinforce_loss(logprobs, ADVANTAGES, RAGGED, 3))
    per_token = ADVANTAGES[:, None].expand(3, 4)
    assert_close(aggregate(reinforce_terms(logprobs, per_token), RAGGED, "sequence_sum", 3), loss)
    assert_close(gradient(loss, logits), gradient(reinforce_loss(logprobs, ADVANTAGES, RAGGED, 3), logits))


def test_ratios_by_hand():
    # log-ratios ln 2, ln 8 | ln 3, padding
    logprobs = torch.tensor([[math.log(2), math.log(8)], [math.log(3), math.nan]])
    old, mask = torch.zeros(2, 2), torch.tensor([[True, True], [True, False]])
    assert_close(importance_ratio(logprobs, old, mask, "token"), torch.tensor([[2.0, 8.0], [3.0, 1.0]]))
    assert_close(importance_ratio(logprobs, old, mask, "sequence"), torch.tensor([16.0, 3.0]))
    assert_close(importance_ratio(logprobs, old, mask, "sequence_mean"), torch.tensor([4.0, 3.0]))  # sqrt(16)
    with pytest.raises(ValueError, match="token, sequence, sequence_mean; got 'word'"):
        importance_ratio(logprobs, old, mask, "word")


@pytest.mark.parametrize("level", LEVELS)
def test_the_ratio_is_exactly_one_before_any_update(level):
    _, _, logprobs = softmax_case()
    assert (importance_ratio(logprobs, logprobs, RAGGED, level) == 1).all()


@pytest.mark.parametrize(("level", "weights"), [("token", 1.0), ("sequence", 1.0), ("sequence_mean", None)])
def test_the_first_clipped_update_is_reinforce(level, weights):
    """At ratio 1 the gradient is -A * grad log pi; the length-normalised ratio divides it by the length."""
    logits, _, logprobs = softmax_case()
    ratio = importance_ratio(logprobs, logprobs.detach(), RAGGED, level)
    loss = aggregate(clipped_terms(ratio, ADVANTAGES, 0.2, 0.2), RAGGED, "sequence_sum", 3)
    scale = 1 / RAGGED.sum(-1) if weights is None else 1.0
    assert_close(gradient(loss, logits), gradient(reinforce_loss(logprobs, ADVANTAGES * scale, RAGGED, 3), logits))


@pytest.mark.parametrize("level", LEVELS)
def test_a_far_off_completion_without_advantage_is_not_nan(level):
    """exp(900) is infinite, and infinity times an advantage of 0 is NaN."""
    logprobs = torch.full((2, 3), -0.1, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    ratio = importance_ratio(logprobs, torch.full((2, 3), -300.0), mask, level)
    terms = clipped_terms(ratio, torch.tensor([0.0, -1.0]), None, None)
    terms.sum().backward()
    assert torch.isfinite(terms).all()
    assert torch.isfinite(logprobs.grad).all()


def test_padding_has_no_say_and_no_gradient():
    logprobs = torch.tensor([[-1.0, math.nan]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    ratio = importance_ratio(logprobs, torch.tensor([[-1.5, math.inf]]), mask, "token")
    aggregate(clipped_terms(ratio, torch.ones(1), 1.0, 1.0), mask, "token_mean", 1).backward()
    assert_close(logprobs.grad, torch.tensor([[-math.exp(0.5), 0.0]]))


def test_corrected_terms_by_hand():
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    advantages = torch.tensor([2.0, -1.0])
    tokens = torch.tensor([[0.5, 5.0], [1.0, 3.0]])
    assert corrected_terms(logprobs, tokens, advantages, 2.0).tolist() == [[1.0, 8.0], [-3.0, -8.0]]
    assert corrected_terms(logprobs, tokens, advantages, None).tolist() == [[1.0, 20.0], [-3.0, -12.0]]
    whole = torch.tensor([5.0, 0.5])  # one ratio a completion
    assert corrected_terms(logprobs, whole, advantages, 2.0).tolist() == [[4.0, 8.0], [-1.5, -2.0]]


def test_the_correction_is_a_weight_and_not_a_path_for_gradients():
    logits, _, logprobs = softmax_case()
    old = logprobs.detach() - 0.3
    ratio = importance_ratio(logprobs, old, RAGGED, "sequence")
    loss = aggregate(corrected_terms(logprobs, ratio, ADVANTAGES, None), RAGGED, "sequence_sum", 3)
    weighted = ADVANTAGES * torch.exp(0.3 * RAGGED.sum(-1))
    assert_close(gradient(loss, logits), gradient(reinforce_loss(logprobs, weighted, RAGGED, 3), logits))


CLIPPED = [  # ratio, advantage, -min(A r, A clamp(r, 0.8, 1.3)), d term / d ratio
    (1.0, 2.0, -2.0, -2.0),
    (1.5, 2.0, -2.6, 0.0),  # has gone far enough up
    (1.5, -2.0, 3.0, 2.0),  # went up although it should go down: pulled back
    (0.5, 2.0, -1.0, -2.0),
    (0.5, -2.0, 1.6, 0.0),  # has gone far enough down
    (1.25, 2.0, -2.5, -2.0),  # between clip_low and clip_high, which differ
    (0.75, -2.0, 1.6, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "term", "slope"), CLIPPED)
def test_clipping_by_hand(ratio, advantage, term, slope):
    r = torch.tensor(ratio, requires_grad=True)
    found = clipped_terms(r, torch.tensor(advantage), 0.2, 0.3)
    found.backward()
    assert_close(found.detach(), torch.tensor(term))
    assert_close(r.grad, torch.tensor(slope))
    assert clip_fraction(r, torch.tensor(advantage), 0.2, 0.3).item() == (slope == 0)


def test_no_clip_is_the_plain_ratio():
    ratio, advantages = torch.tensor([0.1, 9.0]), torch.tensor([-1.0, 2.0])
    assert_close(clipped_terms(ratio, advantages, None, None), -ratio * advantages)
    assert not clip_fraction(ratio, advantages, None, None).any()
    assert clipped_terms(ratio, advantages, None, 0.2).tolist() == pytest.approx([0.1, -2.4])  # above only
    assert clip_fraction(ratio, advantages, None, 0.2).tolist() == [False, True]
    assert clip_fraction(ratio, advantages, 0.2, None).tolist() == [True, False]


def test_an_advantage_a_completion_serves_all_its_tokens():
    ratio, advantages = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, -1.0])
    assert clipped_terms(ratio, advantages, None, None).tolist() == [[-1.0, -2.0], [3.0, 4.0]]
    assert clip_fraction(ratio, advantages, 0.2, 0.2).tolist() == [[False, True], [False, False]]
    assert clipped_terms(torch.tensor([2.0, 3.0]), ratio, None, None).tolist() == [[-2.0, -4.0], [-9.0, -12.0]]
