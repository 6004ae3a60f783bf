import math

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification

from rloo_core.layout import Layout
from rloo_core.losses.ranking import bradley_terry_loss
from rloo_core.reward_models import (
    RewardModel,
    add_reward_lora,
    load_reward_model,
    new_reward_model,
    save_reward_model,
    score_completions,
)
from rloo_core.settings import LoraSettings
from rloo_core.types import CompletionGroups
from tests.rloo_core.algorithms.composing import tiny_reward_model
from tests.rloo_core.tiny import VOCAB, tiny_llama, tiny_neox, tiny_tokenizer

PROMPTS = [[3, 4, 5, 6], [7]]
COMPLETIONS = [[[8, 9, 1], [10, 1]], [[11, 12, 13, 14, 1], [1]]]


@pytest.fixture(params=[tiny_neox, tiny_llama])
def sft_directory(request, tmp_path):
    request.param().save_pretrained(tmp_path / "sft")
    return tmp_path / "sft"


def groups():
    return CompletionGroups.from_ids(PROMPTS, COMPLETIONS, pad_id=0)


def test_plain_transformers_gives_the_same_reward_up_to_the_offset(sft_directory, tmp_path):
    model = new_reward_model(sft_directory, tiny_tokenizer(), seed=0)
    model.offset = 0.25
    save_reward_model(model, tiny_tokenizer(), tmp_path / "rm")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm").eval()
    assert plain.config.reward_offset == 0.25
    rewards = score_completions(model, groups(), max_tokens=1000)
    for p, prompt in enumerate(PROMPTS):
        for k, completion in enumerate(COMPLETIONS[p]):
            expected = plain(input_ids=torch.tensor([prompt + completion])).logits.squeeze() - 0.25
            assert_close(rewards[p, k], expected)
    assert_close(score_completions(load_reward_model(tmp_path / "rm", tiny_tokenizer()), groups(), 1000), rewards)


def test_right_padding_does_not_move_the_reward(sft_directory):
    model = new_reward_model(sft_directory, tiny_tokenizer(), seed=0).double()
    alone = CompletionGroups.from_ids([PROMPTS[1]], [[[1]]], pad_id=0)
    assert_close(score_completions(model, alone, 1000)[0, 0], score_completions(model, groups(), 1000)[1, 1])


def test_batches_give_what_one_batch_gives(sft_directory):
    model = new_reward_model(sft_directory, tiny_tokenizer(), seed=0)
    assert_close(score_completions(model, groups(), max_tokens=1), score_completions(model, groups(), max_tokens=1000))


@pytest.mark.parametrize(("make_model", "rounding"), [(tiny_neox, 1e-9), (tiny_llama, 1e-6)])
def test_both_layouts_have_the_same_rewards_and_gradient(make_model, rounding):
    """Chosen and rejected as branches of one row, or in rows of their own. Llama's norms cast to float32."""
    rewards, gradients = [], []
    for layout in Layout:
        model = tiny_reward_model(make_model().double(), layout=layout)
        rewards.append(score_completions(model, groups(), max_tokens=1000))
        bradley_terry_loss(*model(groups()).T, 2).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert_close(rewards[1], rewards[0], rtol=rounding, atol=rounding)
    assert (gradients[1] - gradients[0]).norm() / gradients[0].norm() < rounding


def test_the_head_starts_small_and_seeded(sft_directory):
    def head(seed):
        return new_reward_model(sft_directory, tiny_tokenizer(), seed).classifier.score.weight

    assert torch.equal(head(0), head(0))
    assert not torch.equal(head(0), head(1))
    assert head(0).shape == (1, 16)
    draws = torch.cat([head(seed) for seed in range(40)])
    assert abs(draws.std().item() - 1 / math.sqrt(17)) < 0.02


def test_adapters_merge_into_an_ordinary_directory(sft_directory, tmp_path):
    lora = LoraSettings(rank=2, alpha=4, target_modules="all-linear")
    model = add_reward_lora(new_reward_model(sft_directory, tiny_tokenizer(), 0), lora, seed=0)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or name == "classifier.score.weight" for name in trainable)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.1
    before = score_completions(model, groups(), 1000)
    save_reward_model(model, tiny_tokenizer(), tmp_path / "rm")
    assert_close(score_completions(load_reward_model(tmp_path / "rm", tiny_tokenizer()), groups(), 1000), before)


def test_a_model_without_a_scalar_head_is_refused():
    with pytest.raises(ValueError, match="linear head `score`"):
        RewardModel(tiny_neox())
    assert len(tiny_tokenizer()) == VOCAB
