"""How likely a model finds completions, token by token."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from rloo_core.batching import token_budget_batches
from rloo_core.layout import Layout, tokens_held
from rloo_core.logprobs import completion_logprobs
from rloo_core.types import CompletionGroups, Ids


@torch.no_grad()
def token_logprobs(
    model: nn.Module, prompts: Sequence[Ids], completions: Sequence[Ids], max_tokens: int, pad_id: int
) -> list[list[float]]:
    """Log-probs (nats) of each completion's tokens, EOS included, at temperature 1.

    Args:
        model: A Hugging Face causal language model.
        prompts: Token ids; completion i follows prompt i.
        completions: Token ids, none empty.
        max_tokens: Budget of a batch, padding included.
        pad_id: Fills short rows, and is never looked at.
    """
    device = next(model.parameters()).device
    found: list[list[float]] = [[] for _ in completions]
    held = tokens_held([len(ids) for ids in prompts], [[len(ids)] for ids in completions], Layout.PADDED)
    for batch in token_budget_batches(len(prompts), held, max_tokens):
        groups = CompletionGroups.from_ids([prompts[i] for i in batch], [[completions[i]] for i in batch], pad_id)
        logprobs = completion_logprobs(model, groups.to(device), temperature=1.0).logprobs[:, 0].cpu().tolist()
        for i, row in zip(batch, logprobs, strict=True):
            found[i] = row[: len(completions[i])]
    return found


def perplexity(logprobs: Sequence[Sequence[float]]) -> float:
    """exp of minus the mean log-prob of all tokens: every token weighs the same, in whichever completion it stands."""
    tokens = sum(map(len, logprobs))
    if tokens == 0:
        raise ValueError("a perplexity needs at least one token")
    return math.exp(-sum(map(math.fsum, logprobs)) / tokens)
