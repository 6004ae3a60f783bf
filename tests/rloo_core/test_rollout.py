from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from scipy import stats
from torch.testing import assert_close
from transformers import MistralConfig, MistralForCausalLM

from rloo_core import decoding, rollout
from rloo_core.layout import Layout
from rloo_core.logprobs import completion_logprobs
from rloo_core.rollout import (
    Sampling,
    StopStrings,
    Truncation,
    finished,
    sample_completions,
    sample_with_logprobs,
    uniform_numbers,
)
from rloo_core.types import CompletionGroups
from tests.rloo_core.test_layout import SPECIAL, tiny_model
from tests.rloo_core.tiny import VOCAB, BigramPolicy, tiny_llama, tiny_neox

EOS, PAD = 1, 0
PROMPTS = [[3, 4, 5, 6], [7], [8, 9], [10, 11, 12]]


def sampling(temperature=1.0, max_new_tokens=8, max_tokens=10_000, **changes):
    return Sampling(temperature, max_new_tokens, (EOS,), PAD, max_tokens, **changes)


def uniforms(count, tokens=8, seed=0):
    return uniform_numbers(seed, "test", [(i,) for i in range(count)], tokens)


def windowed():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=32, initializer_range=0.5, sliding_window=4, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    return MistralForCausalLM(config).eval()


def gpt2():
    return tiny_model("gpt2").float()


def opt():
    return tiny_model("opt").float()


def mixed_windows():
    architecture, changes = SPECIAL["window in some layers"]
    return tiny_model(architecture, **changes).float()


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("make_model", [tiny_neox, tiny_llama, windowed])
def test_greedy_of_a_ragged_batch_equals_generate_one_by_one(make_model, layout):
    model = make_model()
    groups = sample_completions(model, PROMPTS, 2, sampling(temperature=0.0, layout=layout), uniforms(8))
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


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("max_tokens", [1, 15, 40, 70, 10_000])
@pytest.mark.parametrize("make_model", [tiny_neox, windowed])
def test_how_rows_are_batched_changes_nothing(make_model, max_tokens, layout):
    """From one completion at a time over a few branches of a prompt to all at once, prompts waiting their turn."""
    model = make_model().double()
    expected = sample_with_logprobs(model, PROMPTS, 5, sampling(), uniforms(20))
    batched = sample_with_logprobs(model, PROMPTS, 5, sampling(max_tokens=max_tokens, layout=layout), uniforms(20))
    assert batched.groups.completion_lists() == expected.groups.completion_lists()
    assert_close(batched.logprobs, expected.logprobs)


class _Watched:
    """Notes the shape of every call of a model."""

    def __init__(self, model):
        self.calls = []
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module, args, kwargs):
        columns = kwargs["attention_mask"].shape[-1]
        self.calls.append((*kwargs["input_ids"].shape, columns))


def test_a_prompt_is_computed_once_and_its_branches_are_columns_of_its_row():
    model = tiny_neox()
    watched = _Watched(model)
    sample_completions(model, PROMPTS, 2, sampling(temperature=0.0, layout=Layout.SHARED), uniforms(8))
    assert watched.calls[0] == (4, 4, 4)
    assert watched.calls[1] == (4, 2, 6)


@pytest.mark.parametrize(
    ("branches", "budget", "prefills"),
    [
        (4, 10_000, 4),
        (4, 80, 4),  # two prompts at a time: a prompt's completions begin together
        (2, 10_000, 4),  # two rows of a prompt begin together
        (1, 1, 16),  # one completion at a time: its prompt is not kept for the next one
    ],
)
def test_a_prompt_is_computed_once_where_its_completions_begin_together(branches, budget, prefills, monkeypatch):
    monkeypatch.setattr(decoding, "branches_per_row", lambda *arguments: branches)
    model = tiny_neox(seed=3)
    watched = _Watched(model)
    sample_completions(model, PROMPTS, 4, sampling(max_tokens=budget, layout=Layout.SHARED), uniforms(16))
    assert sum(rows for rows, queries, columns in watched.calls if queries == columns) == prefills


def test_what_has_ended_makes_room_for_what_waits():
    """Rows times columns stay within the budget, and prompts enter while others are still being completed."""
    model, budget = tiny_neox(seed=3), 120
    watched = _Watched(model)
    count = 40
    prompts = [PROMPTS[i % 4] for i in range(count)]
    options = sampling(max_new_tokens=20, max_tokens=budget, layout=Layout.SHARED)
    sample_completions(model, prompts, 1, options, uniforms(count, 20))
    assert all(rows * columns <= budget for rows, _, columns in watched.calls)
    prefills = [i for i, (_, queries, columns) in enumerate(watched.calls) if queries == columns]
    assert sum(watched.calls[i][0] for i in prefills) <= count
    steps = Counter(rows for rows, queries, columns in watched.calls if queries != columns)
    assert sum(rows * times for rows, times in steps.items()) < 0.8 * 19 * count  # what has ended is not computed on


def test_memory_does_not_depend_on_how_many_prompts_wait():
    model = tiny_neox(seed=3)
    watched = _Watched(model)
    options = sampling(max_new_tokens=20, max_tokens=150, layout=Layout.SHARED)
    sample_completions(model, [PROMPTS[0]] * 30, 4, options, uniforms(120, 20))
    assert max(rows * columns for rows, _, columns in watched.calls) <= 150


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("make_model", [tiny_neox, tiny_llama, windowed, gpt2, opt, mixed_windows])
def test_the_samplers_log_probs_are_the_trainers(make_model, layout):
    model = make_model()
    found = sample_with_logprobs(
        model, PROMPTS, 4, sampling(0.8, truncation=Truncation(top_k=7), layout=layout), uniforms(16)
    )
    expected = completion_logprobs(model, found.groups, temperature=0.8).logprobs
    assert_close(found.logprobs, expected.detach(), rtol=0, atol=1e-5)
    assert torch.all(found.logprobs[~found.groups.response_mask] == 0)


def test_weights_may_be_bfloat16_while_sampling():
    model = tiny_neox()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = sample_with_logprobs(model, PROMPTS, 4, sampling(dtype=torch.bfloat16, layout=Layout.SHARED), uniforms(16))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert "forward" not in vars(model.lm_head)
    low = completion_logprobs(rollout._in_dtype(model, torch.bfloat16), found.groups, temperature=1.0).logprobs
    exact = completion_logprobs(model, found.groups, temperature=1.0).logprobs
    mismatch = (found.logprobs - exact).abs().max()
    assert 1e-4 < mismatch < 1
    assert (found.logprobs - low).abs().max() < mismatch


def test_stop_strings_end_a_completion_with_the_token_that_completes_them():
    words = {7: "a", 8: "b", 9: "c"}

    def decode(ids):
        return "".join(words.get(i, ".") for i in ids)

    stop = StopStrings(("ab", "c"), decode)
    assert stop([5, 7, 8])
    assert stop([9])
    assert not stop([7, 8, 5])  # it would have ended before
    free = sample_completions(tiny_neox(), PROMPTS, 16, sampling(max_new_tokens=20), uniforms(64, 20))
    cut = sample_completions(tiny_neox(), PROMPTS, 16, sampling(max_new_tokens=20, stop=stop), uniforms(64, 20))
    ended = finished(cut, [EOS], stop)
    for p, group in enumerate(free.completion_lists()):
        for k, ids in enumerate(group):
            places = [n for n in range(1, len(ids) + 1) if stop(ids[:n])]
            assert cut.completion_lists()[p][k] == (ids[: places[0]] if places else ids)
            assert ended[p, k] == (bool(places) or ids[-1] == EOS)
    assert ended.sum() > finished(cut, [EOS]).sum()


def test_random_numbers_depend_on_their_key_alone():
    one = uniform_numbers(0, "test", [(5, 1)], 4)
    assert torch.equal(uniform_numbers(0, "test", [(4, 0), (5, 1)], 4)[1:], one)
    assert not torch.equal(uniform_numbers(0, "test", [(5, 2)], 4), one)
    assert not torch.equal(uniform_numbers(1, "test", [(5, 1)], 4), one)


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
