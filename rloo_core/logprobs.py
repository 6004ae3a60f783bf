"""Log-probs of completions under a causal language model: the one place where they are computed."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rloo_core.cpu_products import fast_products
from rloo_core.heads import Distribution, decoder_of, head_of, in_float32, token_distribution, unwrapped
from rloo_core.layout import Layout, Rows, make_rows
from rloo_core.types import CompletionGroups

__all__ = ["CompletionLogprobs", "completion_logprobs", "in_float32", "reference_logprobs"]


class CompletionLogprobs(NamedTuple):
    """What a model thinks of completions, both [P, K, T] and zero at padding."""

    logprobs: Tensor  # log pi(token | prefix) of the given tokens, with gradient
    entropy: Tensor  # entropy of the distribution each token was drawn from, nats, no gradient


def completion_logprobs(
    model: nn.Module,
    groups: CompletionGroups,
    *,
    temperature: float,
    layout: Layout = Layout.PADDED,
    entropy: bool = True,
) -> CompletionLogprobs:
    """Log-probs of completion tokens, and the entropy they were drawn with, under softmax(logits / temperature).

    Only the hidden states that predict a completion token pass the model's head, and a chunk of them at a time
    (`heads`); they are normalised in float32.

    Args:
        model: A Hugging Face causal language model that takes `position_ids` and `logits_to_keep`, or a wrapper of one.
        groups: Prompts and their completions.
        temperature: Sampling temperature, so that log-probs are those of the distribution sampled from.
        layout: Whether completions share their prompt's computation; the numbers are the same.
        entropy: Whether anybody wants it; zeros otherwise, and less work.

    Returns:
        Log-probs and entropies, [P, K, T].
    """
    plain = unwrapped(model)
    rows = make_rows(groups, layout, getattr(plain, "base_model", None))
    mask, head = groups.response_mask, head_of(plain)
    if head is None:
        found = _through_the_whole_head(model, rows, groups, temperature)
    else:
        hidden = _last_hidden_states(model, decoder_of(plain), rows)[rows.predictors[mask]]
        found = token_distribution(hidden, groups.completion_ids[mask], head, temperature, entropy)
    zeros = found.logprobs.new_zeros(mask.shape)
    return CompletionLogprobs(
        zeros.masked_scatter(mask, found.logprobs), zeros.masked_scatter(mask, found.entropy.detach())
    )


def reference_logprobs(
    model: nn.Module, temperature: float, layout: Layout = Layout.PADDED
) -> Callable[[CompletionGroups], Tensor]:
    """A function from completions to their log-probs [P, K, T] under a frozen model."""

    @torch.no_grad()
    def logprobs(groups: CompletionGroups) -> Tensor:
        return completion_logprobs(model, groups, temperature=temperature, layout=layout, entropy=False).logprobs

    return logprobs


def _last_hidden_states(model: Any, decoder: nn.Module, rows: Rows) -> Tensor:
    """Hidden states of all columns, from a call of the whole (wrapped) model whose head sees one column only."""
    seen: list[Tensor] = []
    hook = decoder.register_forward_hook(lambda module, args, output: seen.append(output.last_hidden_state))
    try:
        with fast_products(decoder):
            model(**rows.inputs, use_cache=False, logits_to_keep=1)
    finally:
        hook.remove()
    return seen[0].flatten(0, 1)


def _through_the_whole_head(model: Any, rows: Rows, groups: CompletionGroups, temperature: float) -> Distribution:
    """For heads that are no plain linear layer: logits of all columns among which completion tokens are predicted."""
    columns = rows.inputs["input_ids"].shape[1]
    logits = model(**rows.inputs, use_cache=False, logits_to_keep=rows.last).logits
    log_softmax = (in_float32(logits) / temperature).log_softmax(-1).flatten(0, 1)
    predictors = rows.predictors[groups.response_mask]
    kept = predictors // columns * rows.last + predictors % columns - (columns - rows.last)
    chosen = log_softmax[kept]
    with torch.no_grad():
        entropy = -(chosen.exp() * chosen).sum(-1)
    return Distribution(chosen.gather(1, groups.completion_ids[groups.response_mask][:, None]).squeeze(1), entropy)
