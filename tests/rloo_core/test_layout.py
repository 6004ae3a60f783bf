"""The shared layout gives the padded layout's numbers and gradients, or is not used."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rloo_core.layout import Layout, choose_layout, hidden_states, make_rows
from rloo_core.logprobs import completion_logprobs
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import VOCAB

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "head_dim": 8}
ARCHITECTURES = {
    "gpt_neox": {}, "llama": {"num_key_value_heads": 1}, "qwen2": {"num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 1}, "mistral": {"num_key_value_heads": 1, "sliding_window": None},
    "gemma": {"num_key_value_heads": 1}, "phi": {}, "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
}  # fmt: skip


def tiny_model(architecture, **changes):
    torch.manual_seed(0)
    values = {"vocab_size": VOCAB, "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.4}
    config = AutoConfig.for_model(architecture, **values, **SIZES, **(ARCHITECTURES.get(architecture, {}) | changes))
    for name in ("dropout", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    return AutoModelForCausalLM.from_config(config).double().eval()


def ragged():
    return CompletionGroups.from_ids(
        [[3, 4, 5, 6, 7], [7], [8, 9]],
        [[[8, 9, 1], [10, 1], [4]], [[11, 12, 13, 14, 1], [1], [5, 5]], [[2, 3], [3], [2, 2, 2]]],
        pad_id=0,
    )


def logprobs_and_gradient(model, layout):
    groups = ragged()
    logprobs, entropy = completion_logprobs(model, groups, temperature=0.8, layout=layout)
    weights = torch.linspace(0.5, 2, logprobs.numel(), dtype=torch.float64).view_as(logprobs)
    gradients = torch.autograd.grad((weights * logprobs).sum(), list(model.parameters()), allow_unused=True)
    return logprobs, entropy, torch.cat([g.flatten() for g in gradients if g is not None])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_and_gradients_equal_the_padded_layouts(architecture):
    model = tiny_model(architecture)
    padded, shared = (logprobs_and_gradient(model, layout) for layout in Layout)
    rounding = (
        1e-6 if architecture in ("llama", "qwen2", "qwen3", "mistral", "gemma") else 1e-9
    )  # RMSNorm casts to float32
    torch.testing.assert_close(shared[0], padded[0], rtol=rounding, atol=rounding)
    torch.testing.assert_close(shared[1], padded[1], rtol=rounding, atol=rounding)
    assert ((shared[2] - padded[2]).norm() / padded[2].norm()).item() < rounding


def test_the_prompt_is_there_once():
    rows = make_rows(ragged(), Layout.SHARED)
    assert rows.inputs["input_ids"].shape == (3, 5 + 3 * 5)
    assert make_rows(ragged(), Layout.PADDED).inputs["input_ids"].shape == (9, 5 + 5)


def test_a_branch_sees_nothing_of_its_siblings():
    model = tiny_model("gpt_neox").base_model
    groups = ragged()
    before = hidden_states(model, groups, Layout.SHARED)
    groups.completion_ids[:, 1] = 21
    after = hidden_states(model, groups, Layout.SHARED)
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_it_is_used_where_the_model_agrees():
    assert choose_layout(tiny_model("llama").base_model, "auto") == (Layout.SHARED, None)
    assert choose_layout(tiny_model("llama").base_model, "padded") == (Layout.PADDED, None)


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("mistral", {"sliding_window": 4}, "sliding windows"),
        ("bloom", {"n_head": 2, "n_layer": 2}, "refuses|differ|attention"),
        ("gpt_neox", {"attn_implementation": "eager"}, "its attention is eager"),
    ],
)
def test_it_is_not_used_where_the_model_does_not(architecture, changes, reason):
    decoder = tiny_model(architecture, **changes).base_model
    layout, why = choose_layout(decoder, "auto")
    assert layout is Layout.PADDED
    with pytest.raises(ValueError, match=reason):
        choose_layout(decoder, "shared")
    assert "compute.layout" in why


@pytest.mark.parametrize("layout", list(Layout))
def test_a_selection_with_fewer_columns_gives_the_same_numbers(layout):
    model, whole = tiny_model("gpt_neox"), ragged()
    part = whole.select([2, 1])
    assert part.completion_ids.shape[-1] == 5
    narrow = whole.select([2])
    assert narrow.completion_ids.shape[-1] == 3
    expected = completion_logprobs(model, whole, temperature=1.0, layout=layout).logprobs
    for groups, indices in ((part, [2, 1]), (narrow, [2])):
        found = completion_logprobs(model, groups, temperature=1.0, layout=layout).logprobs
        torch.testing.assert_close(found, expected[indices, :, : found.shape[-1]])
