"""Log-probs of completions under a causal language model: the one place where they are computed."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rloo_core.types import CompletionGroups


class CompletionLogprobs(NamedTuple):
    """What a model thinks of completions, both [P, K, T] and zero at padding."""

    logprobs: Tensor  # log pi(token | prefix) of the given tokens, with gradient
    entropy: Tensor  # entropy of the distribution each token was drawn from, nats, no gradient


def in_float32(values: Tensor) -> Tensor:
    """Values in float32, or in float64 if that is what they are: sums over a vocabulary need no less."""
    return values if values.dtype == torch.float64 else values.float()


def padded_rows(groups: CompletionGroups) -> dict[str, Tensor]:
    """Prompt + completion rows as a model takes them: left-padded prompts, right-padded completions.

    Returns:
        `input_ids`, `attention_mask`, `position_ids`, each [P * K, S + T]; positions count real tokens from 0.
    """
    prompts, group_size, tokens = groups.completion_ids.shape
    repeat = (prompts * group_size, -1)

    def rows(prompt_part: Tensor, completion_part: Tensor) -> Tensor:
        spread = prompt_part[:, None].expand(-1, group_size, -1).reshape(repeat)
        return torch.cat([spread, completion_part.reshape(-1, tokens)], dim=1)

    attention_mask = rows(groups.prompt_mask, groups.response_mask)
    return {
        "input_ids": rows(groups.prompt_ids, groups.completion_ids),
        "attention_mask": attention_mask.long(),
        "position_ids": (attention_mask.long().cumsum(-1) - 1).clamp(min=0),
    }


def completion_logprobs(model: nn.Module, groups: CompletionGroups, *, temperature: float) -> CompletionLogprobs:
    """Log-probs of completion tokens, and the entropy they were drawn with, under softmax(logits / temperature).

    Logits exist at completion positions only, pass through the model's own head, and are normalised in float32.

    Args:
        model: A Hugging Face causal language model that takes `position_ids` and `logits_to_keep`.
        groups: Prompts and their completions.
        temperature: Sampling temperature, so that log-probs are those of the distribution sampled from.

    Returns:
        Log-probs and entropies, [P, K, T].
    """
    tokens = groups.completion_ids.shape[-1]
    outputs: Any = model(**padded_rows(groups), use_cache=False, logits_to_keep=tokens + 1)
    log_softmax = (in_float32(outputs.logits[:, :-1]) / temperature).log_softmax(-1)  # position t predicts token t + 1
    flat_ids = groups.completion_ids.reshape(-1, tokens)
    logprobs = log_softmax.gather(-1, flat_ids[..., None]).squeeze(-1).view_as(groups.completion_ids)
    with torch.no_grad():
        entropy = -(log_softmax.exp() * log_softmax).sum(-1).view_as(groups.completion_ids)
    padding = ~groups.response_mask
    return CompletionLogprobs(logprobs.masked_fill(padding, 0.0), entropy.masked_fill(padding, 0.0))
