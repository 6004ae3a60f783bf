"""Log-probs of completions under a causal language model: the one place where they are computed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rloo_core.layout import Layout, make_rows
from rloo_core.types import CompletionGroups


class CompletionLogprobs(NamedTuple):
    """What a model thinks of completions, both [P, K, T] and zero at padding."""

    logprobs: Tensor  # log pi(token | prefix) of the given tokens, with gradient
    entropy: Tensor  # entropy of the distribution each token was drawn from, nats, no gradient


def completion_logprobs(
    model: nn.Module, groups: CompletionGroups, *, temperature: float, layout: Layout = Layout.PADDED
) -> CompletionLogprobs:
    """Log-probs of completion tokens, and the entropy they were drawn with, under softmax(logits / temperature).

    Logits exist at the positions that predict completion tokens only, pass through the model's own head, and are
    normalised in float32.

    Args:
        model: A Hugging Face causal language model that takes `position_ids` and `logits_to_keep`.
        groups: Prompts and their completions.
        temperature: Sampling temperature, so that log-probs are those of the distribution sampled from.
        layout: Whether completions share their prompt's computation; the numbers are the same.

    Returns:
        Log-probs and entropies, [P, K, T].
    """
    rows = make_rows(groups, layout)
    outputs: Any = model(**rows.inputs, use_cache=False, logits_to_keep=rows.tokens + 1)
    log_softmax = (in_float32(outputs.logits) / temperature).log_softmax(-1)
    count, _, vocabulary = log_softmax.shape
    chosen = rows.predictors * vocabulary + groups.completion_ids.reshape(count, -1)
    logprobs = log_softmax.view(count, -1).gather(1, chosen).view(groups.completion_ids.shape)
    with torch.no_grad():
        entropy = -(log_softmax.exp() * log_softmax).sum(-1)[:, rows.predictors].view(groups.completion_ids.shape)
    padding = ~groups.response_mask
    return CompletionLogprobs(logprobs.masked_fill(padding, 0.0), entropy.masked_fill(padding, 0.0))


def reference_logprobs(
    model: nn.Module, temperature: float, layout: Layout = Layout.PADDED
) -> Callable[[CompletionGroups], Tensor]:
    """A function from completions to their log-probs [P, K, T] under a frozen model."""

    @torch.no_grad()
    def logprobs(groups: CompletionGroups) -> Tensor:
        return completion_logprobs(model, groups, temperature=temperature, layout=layout).logprobs

    return logprobs


def in_float32(values: Tensor) -> Tensor:
    """Values in float32, or in float64 if that is what they are: sums over a vocabulary need no less."""
    return values if values.dtype == torch.float64 else values.float()
