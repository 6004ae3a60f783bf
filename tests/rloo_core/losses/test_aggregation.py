import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.losses.aggregation import aggregate
from rloo_core.losses.policy_gradient import reinforce_terms
from tests.rloo_core.losses.cases import RAGGED, softmax_case

TERMS = torch.tensor([[1.0, 2.0, 3.0, 4.0], [6.0, 8.0, math.nan, math.nan], [5.0, 9.0, 9.0, 9.0]])
HOW = {"sequence_sum": 3, "sequence_mean": 3, "token_mean": 7, "fixed_length": 3}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sequence_sum", (10 + 14 + 5) / 3),
        ("sequence_mean", (2.5 + 7 + 5) / 3),
        ("token_mean", (10 + 14 + 5) / 7),
        ("fixed_length", (10 + 14 + 5) / (10 * 3)),
    ],
)
def test_by_hand(how, expected):
    assert_close(aggregate(TERMS, RAGGED, how, HOW[how], max_length=10), torch.tensor(expected))


def test_what_a_token_weighs_in_completions_of_length_one_and_nine():
    """Only the mean over each completion makes a token of a short completion weigh more."""
    mask = torch.arange(9) < torch.tensor([[1], [9]])
    weights = {}
    for how, denominator in (("sequence_sum", 2), ("sequence_mean", 2), ("token_mean", 10), ("fixed_length", 2)):
        terms = torch.ones(2, 9, requires_grad=True)
        aggregate(terms, mask, how, denominator, max_length=20).backward()
        weights[how] = [terms.grad[0, 0].item(), terms.grad[1, 0].item()]
        assert (terms.grad[~mask] == 0).all()
    assert weights["sequence_sum"] == [0.5, 0.5]
    assert weights["sequence_mean"] == pytest.approx([0.5, 0.5 / 9])
    assert weights["token_mean"] == pytest.approx([0.1, 0.1])
    assert weights["fixed_length"] == pytest.approx([0.025, 0.025])


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("parts", [[[0, 1, 2]], [[0], [1, 2]], [[2], [0], [1]]])
def test_the_split_of_a_step_does_not_show(how, parts):
    """Ragged completions in one, two or three micro-batches: the same loss and the same gradient."""
    logits, _, logprobs = softmax_case()
    terms = reinforce_terms(logprobs, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    whole = aggregate(terms, RAGGED, how, HOW[how], max_length=4)
    split = sum(aggregate(terms[p], RAGGED[p], how, HOW[how], max_length=4) for p in parts)
    assert_close(split, whole)
    expected = torch.autograd.grad(whole, logits, retain_graph=True)[0]
    assert_close(torch.autograd.grad(split, logits)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("denominator", [0, 5])
@pytest.mark.parametrize("how", HOW)
def test_a_part_without_any_token_adds_nothing(how, denominator):
    terms = torch.tensor([[math.nan, 1.0]], requires_grad=True)
    loss = aggregate(terms, torch.zeros(1, 2, dtype=torch.bool), how, denominator, max_length=2)
    loss.backward()
    assert loss.item() == 0
    assert (terms.grad == 0).all()


@pytest.mark.parametrize("how", ["sequence_sum", "sequence_mean"])
def test_a_term_of_a_whole_completion_counts_once(how):
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert_close(aggregate(torch.tensor([3.0, 5.0, math.nan]), mask, how, 2), torch.tensor(4.0))


@pytest.mark.parametrize("how", ["token_mean", "fixed_length"])
def test_a_term_of_a_whole_completion_has_no_tokens_to_average(how):
    with pytest.raises(ValueError, match=f"loss_agg={how}"):
        aggregate(torch.ones(3), RAGGED, how, 3, max_length=4)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="max_new_tokens"):
        aggregate(TERMS, RAGGED, "fixed_length", 3)
    with pytest.raises(ValueError, match="got 'mean'"):
        aggregate(TERMS, RAGGED, "mean", 3)
