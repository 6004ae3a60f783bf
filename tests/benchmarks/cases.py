"""What is measured: shapes of models and batches, the same for us and for the peer."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

EOS, PAD = 0, 1


@dataclass(frozen=True)
class Shape:
    """A GPT-NeoX model; Pythia's vocabulary is 50,304."""

    hidden: int
    layers: int
    heads: int
    inner: int
    vocabulary: int

    def model(self) -> GPTNeoXForCausalLM:
        torch.manual_seed(0)
        return GPTNeoXForCausalLM(self.config()).eval()

    def config(self) -> GPTNeoXConfig:
        return GPTNeoXConfig(
            vocab_size=self.vocabulary, hidden_size=self.hidden, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, intermediate_size=self.inner, max_position_embeddings=2048,
            bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD,
        )  # fmt: skip

    @property
    def trunk(self) -> int:
        """Weights of the matrices below the head."""
        return self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.inner)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A word a token. No special token is the beginning of a word: it would be found inside it."""
        words = {"<eos>": EOS, "<pad>": PAD} | {f"w{i}": i for i in range(2, self.vocabulary)}
        backend = Tokenizer(WordLevel(words, unk_token="<pad>"))
        backend.pre_tokenizer = WhitespaceSplit()
        return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")


PYTHIA_70M = Shape(512, 6, 8, 2048, 50304)
PYTHIA_14M = Shape(128, 6, 4, 512, 50304)
TINY = Shape(64, 4, 4, 256, 300)


@dataclass(frozen=True)
class Case:
    """One benchmark.

    Attributes:
        kind: What is timed: step, sampler, floor, choice, reward_model or dpo.
        shape: The model.
        prompts: P a step; for reward_model and dpo, pairs.
        lengths: Shortest and longest prompt, tokens.
        group_size: K.
        new_tokens: T.
        steps: Steps of one process; the first is not counted.
        low_precision: Whether our sampler uses bfloat16 weights.
    """

    kind: str
    shape: Shape
    prompts: int
    lengths: tuple[int, int]
    group_size: int
    new_tokens: int
    steps: int = 3
    low_precision: bool = False

    def prompt_ids(self) -> list[list[int]]:
        """Random prompts, their lengths evenly spread."""
        generator = torch.Generator().manual_seed(1)
        low, high = self.lengths
        spread = [low + round(i * (high - low) / max(1, self.prompts - 1)) for i in range(self.prompts)]
        return [torch.randint(2, self.shape.vocabulary, (n,), generator=generator).tolist() for n in spread]

    def completion_ids(self) -> list[list[list[int]]]:
        generator = torch.Generator().manual_seed(2)
        size = (self.prompts, self.group_size, self.new_tokens)
        return torch.randint(2, self.shape.vocabulary, size, generator=generator).tolist()

    def texts(self) -> list[str]:
        return [" ".join(f"w{i}" for i in ids) for ids in self.prompt_ids()]


def reward(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """Cheap, and not the same for all."""
    return [len(set(text.split())) / 10 - len(text) / 300 for text in completions]


PEER = "TRL 1.16"
GENERATE = "generate"
HEAD = "the LM head's product"
CASES = {
    "step_70m": (Case("step", PYTHIA_70M, 4, (128, 256), 4, 53, steps=2), PEER),
    "step_70m_bf16": (Case("step", PYTHIA_70M, 4, (128, 256), 4, 53, steps=2, low_precision=True), PEER),
    "step_14m": (Case("step", PYTHIA_14M, 8, (128, 256), 4, 53), PEER),
    "step_tiny": (Case("step", TINY, 32, (64, 64), 4, 32, steps=4), PEER),
    "floor_70m": (Case("floor", PYTHIA_70M, 4, (128, 256), 4, 53, steps=8), None),
    "sampler_70m": (Case("sampler", PYTHIA_70M, 4, (128, 256), 4, 53), GENERATE),
    "sampler_70m_bf16": (Case("sampler", PYTHIA_70M, 4, (128, 256), 4, 53, low_precision=True), GENERATE),
    "choice_50k": (Case("choice", PYTHIA_70M, 4, (1, 1), 4, 1, steps=60), HEAD),
    "reward_model": (Case("reward_model", PYTHIA_70M, 8, (256, 256), 2, 53), PEER),
    "dpo": (Case("dpo", PYTHIA_70M, 4, (256, 256), 2, 53, steps=2), PEER),
}
GROWTH = {f"growth_k{k}": Case("step", PYTHIA_14M, 4, (128, 256), k, 53, steps=2) for k in (2, 4, 8, 16)} | {
    f"growth_t{t}": Case("step", PYTHIA_14M, 4, (128, 256), 4, t, steps=2) for t in (32, 64, 128, 256)
}
