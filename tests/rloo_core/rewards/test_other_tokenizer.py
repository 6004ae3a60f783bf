"""A reward model that was trained with another tokenizer reads the text in its own ids."""

import copy

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch.testing import assert_close
from transformers import GPTNeoXForSequenceClassification, PreTrainedTokenizerFast

from rloo_core.reward_models import RewardModel
from rloo_core.rewards import ModelReward, ReencodedReward
from rloo_core.tokenization import encode_completion, encode_prompt, same_tokens
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import VOCAB, tiny_neox, tiny_tokenizer

SHIFT = 5  # id i of the policy is id (i + SHIFT) % VOCAB of the reward model
PROMPTS = ["w3 w4 w5", "w6"]
COMPLETIONS = [[[7, 8, 1], [9, 10, 11]], [[12, 1], [13, 14, 15, 1]]]  # the second one is cut off


def permuted_tokenizer():
    names = ["<|pad|>", "<|eos|>", *(f"w{i}" for i in range(2, VOCAB))]
    vocabulary = {name: (i + SHIFT) % VOCAB for i, name in enumerate(names)}
    backend = Tokenizer(WordLevel(vocabulary, unk_token="w2"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|pad|>", eos_token="<|eos|>", unk_token="w2")


@pytest.fixture
def models():
    """A reward model, and the same with the rows of its embedding permuted."""
    torch.manual_seed(0)
    config = copy.deepcopy(tiny_neox().config)
    config.num_labels = 1
    plain = GPTNeoXForSequenceClassification(config).eval()
    permuted = copy.deepcopy(plain)
    permuted.get_input_embeddings().weight.data = plain.get_input_embeddings().weight.data.roll(SHIFT, 0)
    return RewardModel(plain), RewardModel(permuted)


def groups(tokenizer):
    return CompletionGroups.from_ids([encode_prompt(tokenizer, text) for text in PROMPTS], COMPLETIONS, 0)


def test_a_permuted_vocabulary_gives_the_same_scores(models):
    policys, its_own = tiny_tokenizer(), permuted_tokenizer()
    rows = [{"prompt": text} for text in PROMPTS]
    direct = ModelReward(models[0], 1000)(groups(policys), rows)
    foreign = ReencodedReward(models[1], its_own, False, policys, (1,), 1000)
    assert_close(foreign(groups(policys), rows), direct, rtol=0, atol=1e-6)
    wrong = ModelReward(models[1], 1000)(groups(policys), rows)  # the policy's ids as they are: what must not happen
    assert (wrong - direct).abs().max() > 1e-3


def test_it_reads_the_ids_it_would_have_been_trained_on(models):
    policys, its_own = tiny_tokenizer(), permuted_tokenizer()
    encoded = ReencodedReward(models[1], its_own, False, policys, (1,), 1000).encoded(
        groups(policys), [{"prompt": text} for text in PROMPTS]
    )
    ended = encode_completion(its_own, "w7 w8")
    assert encoded.completion_lists()[0][0] == ended
    assert encoded.prompt_lists()[0] == encode_prompt(its_own, PROMPTS[0])
    assert encoded.completion_lists()[0][1] == encode_completion(its_own, "w9 w10 w11")[:-1]  # cut off: no EOS


def test_tokenizers_are_told_apart_by_what_they_do():
    policys, its_own = tiny_tokenizer(), permuted_tokenizer()
    assert same_tokens(policys, tiny_tokenizer())
    assert not same_tokens(policys, its_own)
    other_rules = tiny_tokenizer()
    other_rules.chat_template = "{{ messages }}"
    assert not same_tokens(policys, other_rules)


def test_a_diverged_reward_model_is_no_source_of_unscorable_completions(models):
    models[0].classifier.score.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="gave 4 of 4 completions no finite reward"):
        ModelReward(models[0], 1000)(groups(tiny_tokenizer()), [{"prompt": text} for text in PROMPTS])
