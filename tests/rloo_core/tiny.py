"""Tiny random models and a policy small enough to enumerate."""

from itertools import product
from types import SimpleNamespace

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 23


def tiny_neox(seed: int = 0, **changes) -> GPTNeoXForCausalLM:
    torch.manual_seed(seed)
    config = GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.5, bos_token_id=None, eos_token_id=1, pad_token_id=0, **changes,
    )  # fmt: skip
    return GPTNeoXForCausalLM(config).eval()


def tiny_llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=64, initializer_range=0.5, bos_token_id=2, eos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


class BigramPolicy(nn.Module):
    """A policy whose next-token logits depend on the last token only: every expectation can be summed up exactly."""

    EOS = 0

    def __init__(self, vocab: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(vocab, vocab, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: Tensor, logits_to_keep: int = 0, **ignored: object) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:]])

    def completions(self, max_length: int) -> list[list[int]]:
        """Every completion that can be sampled: ended by EOS, or cut off at `max_length`."""
        vocab = len(self.table)
        found = []
        for length in range(1, max_length + 1):
            for tokens in product(range(vocab), repeat=length):
                ended = tokens[-1] == self.EOS
                if self.EOS not in tokens[:-1] and (ended or length == max_length):
                    found.append(list(tokens))
        return found

    def logprob(self, prompt: list[int], completion: list[int]) -> Tensor:
        """log pi(completion | prompt), straight from the definition."""
        log_softmax = self.table.log_softmax(-1)
        previous = [prompt[-1], *completion[:-1]]
        return torch.stack([log_softmax[a, b] for a, b in zip(previous, completion, strict=True)]).sum()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Words w2 … w22 after a pad and an EOS token."""
    names = ["<|pad|>", "<|eos|>", *(f"w{i}" for i in range(2, VOCAB))]
    backend = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="w2"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|pad|>", eos_token="<|eos|>", unk_token="w2")
