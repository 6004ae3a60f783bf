import pytest
import torch
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from rloo_core.models import load_causal_lm
from rloo_core.reward_models import load_reward_model
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import VOCAB, tiny_tokenizer

SPECIAL = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 1}
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32} | SPECIAL
TOKENS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **SPECIAL))  # dropout 0.1


def neox():
    return GPTNeoXForCausalLM(GPTNeoXConfig(hidden_dropout=0.1, attention_dropout=0.1, **SHAPE))


def llama():
    return LlamaForCausalLM(LlamaConfig(attention_dropout=0.1, **SHAPE))


@pytest.mark.parametrize("make_model", [gpt2, neox, llama])
def test_dropout_is_off_even_in_training_mode(make_model, tmp_path):
    """The same tokens give the same numbers, those of the model at rest, whoever calls `train()`."""
    plain = make_model().eval()
    plain.save_pretrained(tmp_path)
    model = load_causal_lm(tmp_path, tiny_tokenizer())
    assert not model.training
    model.train()
    with torch.no_grad():
        first, second = model(TOKENS).logits, model(TOKENS).logits
        assert torch.equal(first, second)
        assert_close(first, plain(TOKENS).logits)
        with_dropout = [plain.train()(TOKENS).logits for _ in range(2)]
    assert not torch.equal(*with_dropout)  # or there would be nothing to switch off


def test_dropout_is_off_in_reward_models_too(tmp_path):
    gpt2().save_pretrained(tmp_path)
    model = load_reward_model(tmp_path, tiny_tokenizer()).train()
    groups = CompletionGroups.from_ids([[3, 4, 5]], [[[6, 7, 1], [8, 1]]], 0)
    with torch.no_grad():
        assert torch.equal(model(groups), model(groups))
