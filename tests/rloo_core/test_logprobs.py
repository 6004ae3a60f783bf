import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from rloo_core import heads
from rloo_core import logprobs as logprobs_module
from rloo_core.heads import Head, head_of, token_distribution
from rloo_core.logprobs import completion_logprobs
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import VOCAB, tiny_llama, tiny_neox

PROMPTS = [[3, 4, 5, 6], [7]]
COMPLETIONS = [[[8, 9, 1], [10, 1]], [[11, 12, 13, 14, 1], [1]]]


def one_by_one(model, prompt, completion, temperature):
    """Straight from the definition: no padding, no batch, logits of all positions."""
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


@pytest.mark.parametrize("make_model", [tiny_neox, tiny_llama])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_one_completion_at_a_time(make_model, temperature):
    model = make_model().double()
    groups = CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0)
    logprobs, entropy = completion_logprobs(model, groups, temperature=temperature)
    for p, prompt in enumerate(PROMPTS):
        for k, completion in enumerate(COMPLETIONS[p]):
            expected = one_by_one(model, prompt, completion, temperature)
            tokens = torch.tensor(completion)
            assert_close(logprobs[p, k, : len(completion)], expected.gather(-1, tokens[:, None]).squeeze(-1))
            assert_close(entropy[p, k, : len(completion)], -(expected.exp() * expected).sum(-1))
            assert torch.all(logprobs[p, k, len(completion) :] == 0)


def test_an_entropy_that_nobody_reads_is_not_computed_and_changes_no_log_prob():
    groups = CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0)
    model = tiny_neox()
    both, alone = (completion_logprobs(model, groups, temperature=0.7, entropy=wanted) for wanted in (True, False))
    assert torch.equal(both.logprobs, alone.logprobs)
    assert both.entropy.abs().sum() > 0 == alone.entropy.abs().sum()


def test_what_stands_in_the_padding_changes_nothing():
    model = tiny_neox()
    groups = CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0)
    garbage = CompletionGroups(
        torch.where(groups.prompt_mask, groups.prompt_ids, VOCAB - 1),
        groups.prompt_mask,
        torch.where(groups.response_mask, groups.completion_ids, VOCAB - 2),
        groups.response_mask,
    )
    before, after = (completion_logprobs(model, g, temperature=1.0).logprobs for g in (groups, garbage))
    assert torch.equal(before, after)


def test_bfloat16_weights_still_give_float32_log_probs():
    model = tiny_neox().bfloat16()
    groups = CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0)
    logprobs = completion_logprobs(model, groups, temperature=1.0).logprobs
    assert logprobs.dtype == torch.float32
    assert torch.equal(logprobs, completion_logprobs(model, groups, temperature=1.0).logprobs)


def test_only_completion_tokens_pass_the_head(monkeypatch):
    seen = []

    def watched(hidden, *rest):
        seen.append(len(hidden))
        return token_distribution(hidden, *rest)

    monkeypatch.setattr(logprobs_module, "token_distribution", watched)
    completion_logprobs(tiny_neox(), CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0), temperature=1.0)
    assert seen == [3 + 2 + 5 + 1]


HEADS = {
    "plain": Head(None, None, 1.0, None), "bias": Head(None, True, 1.0, None), "scale": Head(None, None, 0.4, None),
    "cap": Head(None, None, 1.0, 1.5), "all": Head(None, True, 0.4, 1.5),
}  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 30, 45, 10**6])  # 15 a row; 45 and 60: of 3, 3, 1 the last fits
@pytest.mark.parametrize("kept", [0, 60, 10**6])
@pytest.mark.parametrize("kind", HEADS)
def test_chunks_kept_or_computed_again_give_the_plain_numbers_and_gradients(kind, chunk, kept, monkeypatch):
    monkeypatch.setattr(heads, "CHUNK", chunk)
    monkeypatch.setattr(heads, "KEPT", kept)
    monkeypatch.setattr(heads, "CACHED", 30)  # two rows at a time
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    hidden, weight, bias = random(7, 4), random(15, 4), random(15) if HEADS[kind].bias else None
    head = HEADS[kind]._replace(weight=weight, bias=bias)
    tokens, upstream = torch.randint(15, (7,), generator=generator), torch.linspace(-1, 2, 7, dtype=torch.float64)
    logits = torch.nn.functional.linear(hidden, weight, bias) * head.scale
    logits = logits if head.cap is None else head.cap * torch.tanh(logits / head.cap)
    log_softmax = (logits / 0.7).log_softmax(-1)
    expected = log_softmax.gather(1, tokens[:, None]).squeeze(1)
    inputs = [value for value in (hidden, weight, bias) if value is not None]
    found = token_distribution(hidden, tokens, head, 0.7)
    assert_close(found.logprobs, expected)
    assert_close(found.entropy, -(log_softmax.exp() * log_softmax).sum(-1))
    theirs = torch.autograd.grad(expected @ upstream, inputs)
    for _ in range(2):  # also when the graph is gone through again
        ours = torch.autograd.grad(found.logprobs @ upstream, inputs, retain_graph=True)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_no_tensor_holds_the_logits_of_all_tokens(monkeypatch):
    monkeypatch.setattr(heads, "CHUNK", 2 * VOCAB)

    class Largest(TorchDispatchMode):
        rows = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.shape[-1:] == (VOCAB,) and len(result) != 16:  # Wᵀ
                Largest.rows = max(Largest.rows, result.numel() // VOCAB)
            return result

    model = tiny_neox()
    head_of(model)
    with Largest():
        completion_logprobs(
            model, CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0), temperature=1.0
        ).logprobs.sum().backward()
    assert Largest.rows == 4  # the head's one column of each of the four rows; chunks have two


def test_a_head_that_is_no_linear_layer_is_used_as_it_is():
    model = tiny_neox()
    groups = CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0)
    expected = completion_logprobs(model, groups, temperature=0.7)
    strange = tiny_neox()
    strange.lm_head = torch.nn.Sequential(strange.lm_head)
    found = completion_logprobs(strange, groups, temperature=0.7)
    assert head_of(strange) is None
    assert_close(found.logprobs, expected.logprobs)
    assert_close(found.entropy, expected.entropy)


def test_a_head_that_does_more_than_its_configuration_says_is_used_as_it_is():
    model = tiny_neox()
    model.lm_head.register_forward_hook(lambda module, args, output: output + output.square())
    assert head_of(model) is None
