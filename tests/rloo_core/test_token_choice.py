"""Tokens are drawn from exactly the distribution they should be, whatever is cut off."""

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from rloo_core.rollout import uniform_numbers
from rloo_core.token_choice import Truncation, choose_tokens

LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -30.0, 1.7, -0.3])
CUTS = [
    Truncation(),
    Truncation(top_k=3),
    Truncation(top_p=0.8),
    Truncation(min_p=0.2),
    Truncation(5, 0.9, 0.3),
    Truncation(99, 1.0),
]


def uniforms(count, seed=0):
    return uniform_numbers(seed, "test", [(0,)], count)[0]


def allowed(probabilities, cut):
    """From the definitions, one after the other, each over what is left; a list of token ids."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    order = order[: cut.top_k or len(order)]
    if cut.top_p is not None:
        whole, mass, kept = sum(probabilities[i] for i in order), 0.0, []
        for i in order:
            if mass < cut.top_p * whole - 1e-9:
                kept.append(i)
            mass += probabilities[i]
        order = kept
    return [i for i in order if probabilities[i] >= (cut.min_p or 0.0) * probabilities[order[0]]]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("cut", CUTS)
def test_tokens_are_drawn_from_the_softmax_of_what_is_allowed(temperature, cut):
    """Chi-square against the exact probabilities; fails for a cumulative sum that is off by one."""
    count = 20_000
    exact = (LOGITS.double() / temperature).softmax(-1).tolist()
    kept = [i for i in allowed(exact, cut) if exact[i] * count > 5]
    draws = choose_tokens(LOGITS.expand(count, -1), temperature, uniforms(count), cut).tokens.bincount(minlength=8)
    assert draws.sum() == draws[kept].sum()
    expected = torch.tensor([exact[i] for i in kept], dtype=torch.float64)
    assert stats.chisquare(draws[kept].double(), expected * count / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize(
    "cut", [Truncation(top_k=40), Truncation(top_p=0.5), Truncation(top_p=0.97), Truncation(60, 0.7, 0.1)]
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_a_large_vocabulary_keeps_what_the_definition_keeps(cut, scale):
    """The lowest and the highest uniform number give the first and the last token that may be drawn."""
    logits = torch.randn(5, 5003, generator=torch.Generator().manual_seed(1)) * scale
    for row in logits:
        kept = sorted(allowed(row.double().softmax(-1).tolist(), cut))
        ends = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
        assert choose_tokens(row.expand(2, -1), 1.0, ends, cut).tokens.tolist() == [kept[0], kept[-1]]


def test_inverting_the_cumulative_distribution_by_hand():
    """Probabilities 1/2, 0, 1/4, 1/4: the first number that exceeds u ends the search."""
    logits = torch.tensor([0.5, 0.0, 0.25, 0.25]).log()
    uniform = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.99], dtype=torch.float64)
    assert choose_tokens(logits.expand(6, -1), 1.0, uniform).tokens.tolist() == [0, 0, 2, 2, 3, 3]


def test_the_ends_of_the_unit_interval_give_possible_tokens():
    for size, only in ((3, 1), (1000, 0), (1000, 999), (1000, 31), (1000, 32)):
        logits = torch.full((2, size), -torch.inf)
        logits[:, only] = 0.0
        ends = torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)
        assert choose_tokens(logits, 1.0, ends).tokens.tolist() == [only, only]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_no_numbers_are_told(wrong):
    logits = torch.stack([LOGITS, torch.full_like(LOGITS, wrong)])
    with pytest.raises(ValueError, match="training has diverged"):
        choose_tokens(logits, 1.0, uniforms(2))


def test_log_probs_are_those_of_the_whole_distribution_at_the_temperature():
    uniform = uniforms(50)
    found = choose_tokens(LOGITS.expand(50, -1), 0.6, uniform, Truncation(top_k=2))
    assert set(found.tokens.tolist()) == {2, 6}
    assert_close(found.logprobs, (LOGITS / 0.6).log_softmax(-1)[found.tokens])


def test_greedy_takes_the_most_probable_and_among_equals_the_first():
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0]])
    found = choose_tokens(logits, 0.0, torch.zeros(1))
    assert found.tokens.tolist() == [1]
    assert_close(found.logprobs, logits.log_softmax(-1)[:, 1])
