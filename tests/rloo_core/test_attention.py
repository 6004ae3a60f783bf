"""compute.attention: what is asked for is used, or refused before anything is computed."""

from shutil import which

import pytest
import torch
from torch.testing import assert_close

from rloo_core import attention
from rloo_core.attention import attention_for_decoding, attention_of, use_attention
from rloo_core.layout import Layout, choose_layout
from rloo_core.logprobs import completion_logprobs
from rloo_core.observer import SilentObserver
from rloo_core.rollout import Sampling, sample_with_logprobs, uniform_numbers
from rloo_core.trainer import TrainingLoop, make_accelerator
from tests.rloo_core.test_checkpoints_and_resume import COMPUTE, settings
from tests.rloo_core.test_layout import ragged, tiny_model
from tests.rloo_core.tiny import tiny_llama, tiny_neox

PROMPTS = [[3, 4, 5, 6], [7], [8, 9]]
SAMPLING = Sampling(1.0, 6, (1,), 0, 1000, layout=Layout.SHARED)


def sampled(model):
    return sample_with_logprobs(model, PROMPTS, 3, SAMPLING, uniform_numbers(0, "test", [(i,) for i in range(9)], 6))


@pytest.mark.skipif(which("g++") is None, reason="FlexAttention on a CPU is compiled with g++")
@torch.no_grad()
def test_with_flex_attention_a_model_scores_and_samples_as_with_sdpa():
    """What evaluation does with a model, on a CPU; gradients are compared with the other kinds of attention."""
    flex, plain = tiny_model("llama").float(), tiny_model("llama").float()
    use_attention(flex, "flex_attention")
    assert choose_layout(flex.base_model, "auto") == (Layout.SHARED, None)
    found = completion_logprobs(flex, ragged(), temperature=0.8, layout=Layout.SHARED).logprobs
    assert_close(found, completion_logprobs(plain, ragged(), temperature=0.8).logprobs, rtol=1e-5, atol=1e-5)
    ours, theirs = sampled(flex), sampled(plain)
    assert ours.groups.completion_lists() == theirs.groups.completion_lists()
    assert_close(ours.logprobs, theirs.logprobs, rtol=1e-5, atol=1e-5)
    assert attention_of(flex) == "flex_attention"


def test_while_decoding_flex_attention_gives_way_and_comes_back():
    model = tiny_neox()
    model.set_attn_implementation("flex_attention")
    expected = sampled(tiny_neox())
    with attention_for_decoding(model):
        assert attention_of(model) == attention_of(model.base_model) == "sdpa"
    assert attention_of(model) == attention_of(model.base_model) == "flex_attention"
    assert torch.equal(sampled(model).logprobs, expected.logprobs)


def test_the_others_are_left_alone_while_decoding():
    model = tiny_neox(attn_implementation="eager")
    with attention_for_decoding(model):
        assert attention_of(model) == "eager"


def test_what_is_asked_for_is_used():
    model = tiny_neox()
    expected = completion_logprobs(model, ragged(), temperature=1.0).logprobs
    use_attention(model, "auto")
    assert attention_of(model) == "sdpa"
    use_attention(model, "eager")
    assert attention_of(model.base_model) == "eager"
    assert_close(completion_logprobs(model, ragged(), temperature=1.0, layout=Layout.SHARED).logprobs, expected)


def test_a_model_without_it_is_refused():
    with pytest.raises(
        ValueError, match=r"compute\.attention=flex_attention does not work with this model: Bloom.*=auto"
    ):
        use_attention(tiny_model("bloom", n_head=2, n_layer=2), "flex_attention")


def test_a_model_that_gives_other_numbers_with_it_is_refused(monkeypatch):
    numbers = iter([torch.ones(3), torch.tensor([1.0, 1.0, 1.1])])
    monkeypatch.setattr(attention, "_trial", lambda model: next(numbers))
    with pytest.raises(ValueError, match=r"hidden states differ by 10\.0%; set compute\.attention=auto"):
        use_attention(tiny_llama(), "flex_attention")


def test_a_compiler_that_fails_is_told_in_one_line(monkeypatch):
    def fail(decoder, groups, layout):
        if decoder.config._attn_implementation == "flex_attention":
            raise RuntimeError("no compiler\nand a hundred lines")
        return torch.ones(groups.completion_ids.shape)

    monkeypatch.setattr(attention, "hidden_states", fail)
    with pytest.raises(ValueError, match=r"^compute\.attention=flex_attention does not work .*: no compiler; set"):
        use_attention(tiny_llama(), "flex_attention")


def test_training_with_flex_attention_on_a_cpu_is_refused(tmp_path):
    model = tiny_neox()
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match=r"flex_attention cannot train on this machine's CPU.*compute\.attention=auto"):
        TrainingLoop(make_accelerator(COMPUTE), model, settings(), 1, tmp_path, SilentObserver())
