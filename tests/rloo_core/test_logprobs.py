import pytest
import torch
from torch.testing import assert_close

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


def test_only_completion_positions_pass_the_head():
    model = tiny_neox()
    seen = []
    model.get_output_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0].shape[1]))
    completion_logprobs(model, CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0), temperature=1.0)
    assert seen == [6]  # the longest completion and the position before it, not the 9 of the whole row
