"""Reward models: a scalar head on a language model, read at the last token of a completion."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from rloo_core.batching import token_budget_batches
from rloo_core.heads import in_float32, unwrapped
from rloo_core.layout import Layout, last_hidden_states, tokens_held
from rloo_core.models import add_lora, disable_dropout, fit_vocabulary, merge_lora, save_model
from rloo_core.random_streams import generator_for
from rloo_core.settings import LoraSettings
from rloo_core.types import CompletionGroups

OFFSET = "reward_offset"  # its name in the classifier's config: the head has no bias, so the offset is kept there
TEMPLATE = "reward_chat_template"  # whether text prompts were given through the chat template


class RewardModel(nn.Module):
    """A sequence classifier with one label, as a function from completions to rewards.

    The reward is the head's output at the last token of the completion, found by mask and never by token id, less an
    offset.

    Args:
        classifier: A Hugging Face `…ForSequenceClassification` with a linear head `score`.
        layout: Whether completions share their prompt's computation; the numbers are the same.

    Raises:
        ValueError: If the classifier has no such head with one output.
    """

    def __init__(self, classifier: PreTrainedModel, layout: Layout = Layout.PADDED) -> None:
        super().__init__()
        head = getattr(classifier, "score", None)
        if not isinstance(head, nn.Linear) or head.out_features != 1:
            raise ValueError(
                f"a reward model needs a linear head `score` with one output; {type(classifier).__name__} has {head}. "
                f"Use a decoder-only sequence classifier with num_labels=1 (`reward_model.path`)"
            )
        self.classifier = classifier
        self.layout = layout

    @property
    def offset(self) -> float:
        """What is subtracted from the head's output, reward units."""
        return float(getattr(self.classifier.config, OFFSET, 0.0))

    @offset.setter
    def offset(self, value: float) -> None:
        setattr(self.classifier.config, OFFSET, value)

    def forward(self, groups: CompletionGroups) -> Tensor:
        """Reward of each completion, float32, with gradient. Shape [P, K]."""
        classifier: Any = self.classifier
        hidden = last_hidden_states(classifier.base_model, groups, self.layout)
        return in_float32(classifier.score(hidden)).squeeze(-1) - self.offset


def add_reward_lora(model: RewardModel, lora: LoraSettings, seed: int) -> RewardModel:
    """Give the decoder below the head low-rank adapters; the head itself trains in full."""
    classifier: Any = model.classifier
    setattr(classifier, classifier.base_model_prefix, add_lora(classifier.base_model, lora, seed, task=None))
    return model


def save_reward_model(model: RewardModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Write a directory that `AutoModelForSequenceClassification` loads; its config keeps the offset."""
    classifier: Any = model.classifier
    setattr(classifier, classifier.base_model_prefix, merge_lora(classifier.base_model))
    save_model(classifier, tokenizer, directory)


def new_reward_model(sft_directory: Path, tokenizer: PreTrainedTokenizerBase, seed: int) -> RewardModel:
    """A reward model that starts from a language model, with a new head ~ N(0, 1/(hidden size + 1)).

    Args:
        sft_directory: Hugging Face directory of the SFT model.
        tokenizer: The tokenizer of all stages.
        seed: Of the head's weights.

    References:
        Stiennon et al. 2020, https://arxiv.org/abs/2009.01325 (the head's initialisation)
    """
    with torch.random.fork_rng(devices=[]):
        model = load_reward_model(sft_directory, tokenizer)
    head: Any = model.classifier.score
    noise = torch.randn(head.weight.shape, generator=generator_for(seed, "reward head"))
    head.weight.data = noise / math.sqrt(head.in_features + 1)
    return model


def load_reward_model(directory: str | Path, tokenizer: PreTrainedTokenizerBase) -> RewardModel:
    """Load a sequence classifier with one label in float32 with dropout off.

    Args:
        directory: Hugging Face directory or hub id; safetensors only.
        tokenizer: The tokenizer of all stages, which must be the one the model was trained with.
    """
    classifier = AutoModelForSequenceClassification.from_pretrained(
        directory, num_labels=1, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    fit_vocabulary(classifier, tokenizer)
    return RewardModel(disable_dropout(classifier))


def trained_with_template(model: RewardModel) -> bool:
    """Whether text prompts went through the tokenizer's chat template when it was trained."""
    return bool(getattr(model.classifier.config, TEMPLATE, False))


@torch.no_grad()
def score_completions(model: nn.Module, groups: CompletionGroups, max_tokens: int) -> Tensor:
    """Rewards without gradient, in batches of at most `max_tokens` tokens.

    Args:
        model: A `RewardModel`, or the same wrapped for several processes or for autocast.
        groups: Prompts and completions, tokenised as in training.
        max_tokens: Budget of a batch, padding included.

    Returns:
        Shape [P, K], on the CPU, reward units.
    """
    device = next(model.parameters()).device
    plain = unwrapped(model)
    held = tokens_held(*groups.lengths(), plain.layout, plain.classifier.config)
    batches = token_budget_batches(len(groups.prompt_ids), held, max_tokens)
    rewards = torch.cat([model(groups.select(batch).to(device)).cpu() for batch in batches])
    return rewards[torch.tensor([index for batch in batches for index in batch]).argsort()]
