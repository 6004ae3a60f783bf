"""The shared layout gives the padded layout's numbers and gradients, or is not used."""

import pytest
import torch
from torch.nn.attention import flex_attention
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from rloo_core import layout as layout_module
from rloo_core import visibility
from rloo_core.heads import head_of
from rloo_core.layout import Layout, branches_per_row, choose_layout, hidden_states, make_rows, tokens_held
from rloo_core.logprobs import completion_logprobs
from rloo_core.types import CompletionGroups
from rloo_core.visibility import block_rule, visible
from tests.rloo_core.tiny import VOCAB

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "head_dim": 8}
ARCHITECTURES = {
    "gpt_neox": {}, "llama": {"num_key_value_heads": 1}, "qwen2": {"num_key_value_heads": 1},
    "qwen3": {"num_key_value_heads": 1}, "mistral": {"num_key_value_heads": 1, "sliding_window": None},
    "gemma": {"num_key_value_heads": 1}, "phi": {}, "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
}  # fmt: skip
CASTS_TO_FLOAT32 = {"llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "granite", "cohere"}  # in their norms
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "num_key_value_heads": 1}
SPECIAL = {  # windows of four tokens in rows of ten, alone or mixed with full layers; heads with a scale
    "window": ("mistral", {"num_key_value_heads": 1, "sliding_window": 4}),
    "window in some layers": ("qwen2", MIXED | {"use_sliding_window": True, "sliding_window": 4}),
    "scaled head": ("granite", {"num_key_value_heads": 1, "logits_scaling": 3.0}),
    "other scaled head": ("cohere", {"num_key_value_heads": 1, "logit_scale": 0.3}),
}


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
    weights = torch.linspace(0.5, 2, logprobs.numel(), dtype=logprobs.dtype).view_as(logprobs)
    gradients = torch.autograd.grad((weights * logprobs).sum(), list(model.parameters()), allow_unused=True)
    return logprobs, entropy, torch.cat([g.flatten() for g in gradients if g is not None])


def assert_layouts_agree(model, rounding):
    padded, shared = (logprobs_and_gradient(model, layout) for layout in Layout)
    assert_close(shared[0], padded[0], rtol=rounding, atol=rounding)
    assert_close(shared[1], padded[1], rtol=rounding, atol=rounding)
    assert ((shared[2] - padded[2]).norm() / padded[2].norm()).item() < rounding


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_and_gradients_equal_the_padded_layouts(architecture):
    assert_layouts_agree(tiny_model(architecture), 1e-6 if architecture in CASTS_TO_FLOAT32 else 1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_they_do_in_float32(architecture):
    assert_layouts_agree(tiny_model(architecture).float(), 1e-5)


@pytest.mark.parametrize("special", SPECIAL)
def test_windows_and_heads_of_all_kinds(special):
    architecture, changes = SPECIAL[special]
    model = tiny_model(architecture, **changes)
    assert head_of(model) is not None
    assert_layouts_agree(model, 1e-6 if architecture in CASTS_TO_FLOAT32 else 1e-9)
    assert_layouts_agree(model.float(), 1e-5)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("gemma2", MIXED | {"sliding_window": 4, "final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0}),
        ("gpt_neox", {"attn_implementation": "eager"}),
    ],
)
def test_eager_attention_takes_an_additive_mask(architecture, changes):
    """In float32: in float64, eager attention's own padding rows are NaN."""
    model = tiny_model(architecture, **changes).float()
    assert head_of(model) is not None
    assert_layouts_agree(model, 1e-5)
    assert choose_layout(model.base_model, "auto") == (Layout.SHARED, None)


@pytest.mark.parametrize("branches", [1, 3])
def test_however_many_branches_share_a_row(branches, monkeypatch):
    monkeypatch.setattr(layout_module, "branches_per_row", lambda *args: branches)
    model = tiny_model("gpt_neox")
    assert make_rows(ragged(), Layout.SHARED, model.base_model).inputs["input_ids"].shape[0] == 9 // branches
    assert_layouts_agree(model, 1e-9)


@pytest.mark.parametrize("batch", [[0], [1], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("scale", [1.0, 20.0, 1000.0])
@pytest.mark.parametrize("layout", list(Layout))
def test_what_rows_hold_is_counted_before_they_are_made(layout, scale, batch, monkeypatch):
    """However many branches share a row: the budget of a batch is one of memory."""
    monkeypatch.setattr(layout_module, "row_scale", lambda config: scale)
    model, groups = tiny_model("gpt_neox").base_model, ragged()
    made = make_rows(groups.select(batch), layout, model).inputs["input_ids"]
    assert tokens_held(*groups.lengths(), layout, model.config)(batch) == made.numel()


def test_a_shared_row_counts_its_prompt_once():
    lengths, config = ([100, 90], [[10, 20], [5, 1]]), tiny_model("gpt_neox").config
    assert tokens_held(*lengths, Layout.SHARED, config)([0, 1]) == 2 * 130
    assert tokens_held(*lengths, Layout.PADDED)([0, 1]) == 4 * 120


def test_long_branches_get_rows_of_their_own():
    assert branches_per_row(prompt=200, tokens=50, group_size=4, scale=3000) == 4
    assert branches_per_row(prompt=10, tokens=1000, group_size=4, scale=3000) == 1
    assert branches_per_row(prompt=100, tokens=200, group_size=16, scale=3000) in (2, 4, 8)


def test_the_mask_by_hand():
    """Columns: padding, two of the prompt, two branches of two tokens, the second one's last is padding."""
    branch, position = torch.tensor([[-1, 0, 0, 1, 1, 2, -1]]), torch.tensor([[0, 0, 1, 2, 3, 2, 3]])
    rows = {1: "0100000", 2: "0110000", 3: "0111000", 4: "0111100", 5: "0110010"}
    full, window = (visible(branch, position, 7, w)[0].int() for w in (None, 2))
    assert {q: "".join(map(str, full[q].tolist())) for q in rows} == rows
    narrow = {1: "0100000", 2: "0110000", 3: "0011000", 4: "0001100", 5: "0010010"}
    assert {q: "".join(map(str, window[q].tolist())) for q in narrow} == narrow
    assert full.any(1).all()  # no row sees nothing
    assert torch.equal(visible(branch, position, 2, 2), visible(branch, position, 7, 2)[:, -2:])


@pytest.mark.parametrize("window", [None, 3])
def test_flex_attention_is_given_the_same_mask(window):
    rows = make_rows(ragged(), Layout.SHARED, tiny_model("gpt_neox").base_model).inputs
    branch = torch.randint(-1, 3, rows["input_ids"].shape, generator=torch.Generator().manual_seed(0))
    position, columns = rows["position_ids"], branch.shape[1]
    rule = block_rule(branch, position, 0, window)
    dense = flex_attention.create_mask(rule, len(branch), 1, columns, columns, device="cpu")
    assert torch.equal(dense[:, 0], visible(branch, position, columns, window))


def test_the_prompt_is_there_once():
    """And no row is longer than the longest that is needed: 5 + (3 + 2 + 1) tokens, and 1 + (5 + 1 + 2)."""
    rows = make_rows(ragged(), Layout.SHARED, tiny_model("gpt_neox").base_model)
    assert rows.inputs["input_ids"].tolist()[:2] == [
        [3, 4, 5, 6, 7, 8, 9, 1, 10, 1, 4], [7, 11, 12, 13, 14, 1, 1, 5, 5, 0, 0],
    ]  # fmt: skip
    assert rows.inputs["position_ids"].tolist()[0] == [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 5]
    assert make_rows(ragged(), Layout.PADDED).inputs["input_ids"].shape == (9, 5 + 3)


def test_rows_of_single_completions_need_no_mask():
    """Causal attention, whose kernels leave out half of the work, is all that is asked for."""
    seen = []
    model = tiny_model("gpt_neox").base_model
    attention = model.layers[0].attention
    attention.register_forward_pre_hook(lambda m, args, kwargs: seen.append(kwargs["attention_mask"]), with_kwargs=True)
    hidden_states(model, ragged(), Layout.PADDED)
    assert seen == [None]


def test_a_branch_sees_nothing_of_its_siblings():
    model = tiny_model("gpt_neox").base_model
    groups = ragged()
    before = hidden_states(model, groups, Layout.SHARED)
    groups.completion_ids[:, 1] = 21
    after = hidden_states(model, groups, Layout.SHARED)
    others = groups.response_mask[:, [0, 2]]
    assert torch.equal(before[:, [0, 2]][others], after[:, [0, 2]][others])
    assert not torch.equal(before[:, 1], after[:, 1])


def test_it_is_used_where_the_model_agrees():
    assert choose_layout(tiny_model("llama").base_model, "auto") == (Layout.SHARED, None)
    for architecture, changes in SPECIAL.values():
        assert choose_layout(tiny_model(architecture, **changes).base_model, "auto") == (Layout.SHARED, None)
    assert choose_layout(tiny_model("llama").base_model, "padded") == (Layout.PADDED, None)


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("bloom", {"n_head": 2, "n_layer": 2}, "refuses|differ|attention"),
        ("recurrent_gemma", {"num_key_value_heads": 1}, "refuses|differ|attention|layers"),
    ],
)
def test_it_is_not_used_where_the_model_does_not(architecture, changes, reason):
    decoder = tiny_model(architecture, **changes).base_model
    layout, why = choose_layout(decoder, "auto")
    assert layout is Layout.PADDED
    with pytest.raises(ValueError, match=reason):
        choose_layout(decoder, "shared")
    assert "compute.layout" in why


def test_a_forgotten_window_is_noticed(monkeypatch):
    """The trial rows are longer than the window: a mask that leaves it out does not agree."""
    monkeypatch.setattr(visibility, "layer_windows", lambda config: {"full_attention": None})
    layout, why = choose_layout(tiny_model("mistral", sliding_window=20, num_key_value_heads=1).base_model, "auto")
    assert layout is Layout.PADDED
    assert "differ" in why


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
        assert_close(found, expected[indices, :, : found.shape[-1]])
