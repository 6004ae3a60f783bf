from types import SimpleNamespace

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from rloo_core.rollout import Sampling, finished, sample_completions, sample_tokens, uniform_numbers
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import VOCAB, BigramPolicy, tiny_llama, tiny_neox

EOS, PAD = 1, 0
PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


def sampling(temperature=1.0, max_new_tokens=8, max_tokens=10_000):
    return Sampling(temperature, max_new_tokens, (EOS,), PAD, max_tokens)


def uniforms(count, tokens=8, seed=0):
    return uniform_numbers(seed, "test", [(i,) for i in range(count)], tokens)


@pytest.mark.parametrize("make_model", [tiny_neox, tiny_llama])
def test_greedy_of_a_ragged_batch_equals_generate_one_by_one(make_model):
    model = make_model()
    groups = sample_completions(model, PROMPTS, 2, sampling(temperature=0.0), uniforms(8))
    for prompt, group in zip(PROMPTS, groups.completion_lists(), strict=True):
        options = {"max_new_tokens": 8, "eos_token_id": EOS, "pad_token_id": PAD}
        expected = model.generate(torch.tensor([prompt]), do_sample=False, **options)
        assert group[0] == group[1] == expected[0, len(prompt) :].tolist()


def test_some_completions_end_and_leave_the_batch_while_others_go_on():
    groups = sample_completions(tiny_neox(seed=3), PROMPTS, 8, sampling(max_new_tokens=30), uniforms(32, 30))
    lengths = groups.response_mask.sum(-1)
    assert lengths.min() < lengths.max()
    for group, ended in zip(groups.completion_lists(), finished(groups, [EOS]).tolist(), strict=True):
        for ids, end in zip(group, ended, strict=True):
            assert ids.count(EOS) == int(end)
            assert (ids[-1] == EOS) if end else (len(ids) == 30)


@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
def test_how_rows_are_batched_changes_nothing(max_tokens):
    model = tiny_neox().double()
    expected = sample_completions(model, PROMPTS, 3, sampling(), uniforms(12)).completion_lists()
    batched = sample_completions(model, PROMPTS, 3, sampling(max_tokens=max_tokens), uniforms(12)).completion_lists()
    assert batched == expected


def test_random_numbers_depend_on_their_key_alone():
    one = uniform_numbers(0, "test", [(5, 1)], 4)
    assert torch.equal(uniform_numbers(0, "test", [(4, 0), (5, 1)], 4)[1:], one)
    assert not torch.equal(uniform_numbers(0, "test", [(5, 2)], 4), one)
    assert not torch.equal(uniform_numbers(1, "test", [(5, 1)], 4), one)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_from_the_softmax(temperature):
    """Chi-square against the exact probabilities; fails for a cumulative sum that is off by one."""
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, -30.0])
    draws = sample_tokens(logits.expand(20_000, -1), temperature, uniforms(20_000, 1)[:, 0])
    observed = draws.bincount(minlength=5).double()
    expected = (logits.double() / temperature).softmax(-1) * len(draws)
    assert observed[4] == 0
    assert stats.chisquare(observed[:4], expected[:4] * observed[:4].sum() / expected[:4].sum()).pvalue > 1e-3


def test_the_ends_of_the_unit_interval_give_possible_tokens():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(2, -1)
    assert sample_tokens(logits, 1.0, torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64)).tolist() == [1, 1]


def test_completions_have_their_exact_probabilities():
    """Whole completions of an enumerable policy, chi-square over all of them."""
    policy = BigramPolicy(3, seed=0)
    policy.EOS = 0
    model = _WithCache(policy)
    count = 4000
    drawn = sample_completions(
        model, [[2]], count, Sampling(1.0, 2, (0,), 0, 10**9), uniforms(count, 2, seed=1)
    ).completion_lists()[0]
    every = policy.completions(2)
    expected = torch.stack([policy.logprob([2], completion) for completion in every]).exp()
    assert_close(expected.sum().item(), 1.0)
    observed = torch.tensor([drawn.count(completion) for completion in every]).double()
    assert stats.chisquare(observed, expected.detach() * count).pvalue > 1e-3


class _WithCache(torch.nn.Module):
    """Gives the bigram policy the little of a cache that the sampler asks for."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, input_ids, logits_to_keep=1, **ignored):
        output = self.policy(input_ids, logits_to_keep=1)
        output.cache = self
        return output

    def batch_repeat_interleave(self, repeats): ...

    def batch_select_indices(self, indices): ...


def test_finished_knows_every_eos():
    groups = CompletionGroups.from_ids([[3]], [[[4, 1], [4, 2], [4, 4], [1]]], PAD)
    assert finished(groups, [1, 2]).tolist() == [[True, True, False, True]]
    assert VOCAB > 2


class _Constant(torch.nn.Module):
    """Always writes the same token, and counts how often it is asked."""

    def __init__(self, token):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.nn.functional.one_hot(torch.tensor(token), VOCAB) * 50.0)
        self.calls = 0

    def forward(self, input_ids, **ignored):
        self.calls += 1
        return SimpleNamespace(logits=self.logits.expand(len(input_ids), 1, -1), cache=self)

    def batch_repeat_interleave(self, repeats): ...


@pytest.mark.parametrize(("token", "calls", "completion"), [(1, 1, [1]), (2, 1, [2]), (3, 1, [3]), (4, 6, [4] * 6)])
def test_each_of_several_eos_ids_ends_a_completion_and_its_computation(token, calls, completion):
    model = _Constant(token)
    groups = sample_completions(model, [[7, 8]], 2, Sampling(1.0, 6, (1, 2, 3), PAD, 100), uniforms(2, 6))
    assert groups.completion_lists() == [[completion] * 2]
    assert model.calls == calls


def test_an_eos_is_a_completions_last_token_whichever_it_is():
    groups = sample_completions(tiny_neox(seed=3), PROMPTS, 8, Sampling(1.0, 30, (1, 4), PAD, 10_000), uniforms(32, 30))
    last = set()
    for group in groups.completion_lists():
        for ids in group:
            assert not {1, 4} & set(ids[:-1])
            assert ids[-1] in (1, 4) or len(ids) == 30
            last.add(ids[-1])
    assert {1, 4} <= last
