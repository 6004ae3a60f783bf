"""Rollouts: completions sampled from a policy, each with its own stream of random numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rloo_core.batching import token_budget_batches
from rloo_core.random_streams import generator_for
from rloo_core.types import CompletionGroups, Ids


def uniform_numbers(seed: int, purpose: str, keys: Sequence[tuple[int, ...]], count: int) -> Tensor:
    """Random numbers in [0, 1), one row a key: a row depends on its key alone, whatever it is batched with.

    Args:
        seed: The stage's seed.
        purpose: Name of the stream.
        keys: What a row is for, e.g. (step, prompt, sample).
        count: Numbers a row.

    Returns:
        Shape [len(keys), count], float64.
    """
    return torch.stack(
        [torch.rand(count, generator=generator_for(seed, purpose, *key), dtype=torch.float64) for key in keys]
    )


def sample_tokens(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """One token a row from softmax(logits / temperature), by inverting the cumulative distribution.

    Args:
        logits: Shape [B, V].
        temperature: 0 takes the most probable token (the lowest id among equals).
        uniform: Numbers in [0, 1), shape [B].

    Returns:
        Token ids, shape [B].
    """
    if temperature == 0.0:
        return logits.argmax(-1)
    cumulative = (logits.float() / temperature).softmax(-1).double().cumsum(-1)
    threshold = uniform.to(logits.device) * cumulative[:, -1]
    token = torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(-1)
    return token.clamp(max=logits.shape[-1] - 1)


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled.

    Attributes:
        temperature: Of the softmax; 0 is greedy.
        max_new_tokens: Tokens after which a completion is cut off, unfinished.
        eos_ids: Tokens that end a completion; the one that did is kept as its last token.
        pad_id: Fills the columns after the end.
        max_tokens: Budget of a batch, rows x row length.
    """

    temperature: float
    max_new_tokens: int
    eos_ids: tuple[int, ...]
    pad_id: int
    max_tokens: int


@torch.no_grad()
def sample_completions(
    model: nn.Module, prompts: Sequence[Ids], group_size: int, sampling: Sampling, uniform: Tensor
) -> CompletionGroups:
    """Sample K completions of each prompt. A prompt is prefilled once and its cache fanned out to its K rows.

    Args:
        model: A Hugging Face causal language model.
        prompts: Token ids of each prompt.
        group_size: K.
        sampling: Temperature, length, special tokens, batch budget.
        uniform: Random numbers of each row, from `uniform_numbers`. Shape [P * K, >= max_new_tokens].

    Returns:
        The P prompts with their completions, on the CPU, in the order of `prompts`.
    """
    lengths = [len(prompt) + sampling.max_new_tokens for prompt in prompts]
    completions: list[list[list[int]]] = [[] for _ in prompts]
    for batch in token_budget_batches(lengths, sampling.max_tokens, group_size):
        rows = [i * group_size + k for i in batch for k in range(group_size)]
        tokens = _decode(model, [prompts[i] for i in batch], group_size, sampling, uniform[rows])
        for j, i in enumerate(batch):
            group = tokens[j * group_size : (j + 1) * group_size].tolist()
            completions[i] = [_up_to_eos(ids, sampling.eos_ids) for ids in group]
    return CompletionGroups.from_ids(prompts, completions, sampling.pad_id)


def finished(groups: CompletionGroups, eos_ids: Sequence[int]) -> Tensor:
    """True where a completion ends with an EOS token rather than being cut off. Shape [P, K]."""
    last = (groups.response_mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    final_tokens = groups.completion_ids.gather(-1, last).squeeze(-1)
    return torch.isin(final_tokens, torch.tensor(list(eos_ids), device=final_tokens.device))


def _decode(model: Any, prompts: Sequence[Ids], group_size: int, sampling: Sampling, uniform: Tensor) -> Tensor:
    """The decoding loop of one batch; rows that have ended leave it. Returns ids [P * K, T], padded."""
    pad_id, max_new_tokens = sampling.pad_id, sampling.max_new_tokens
    device = next(model.parameters()).device
    batch = CompletionGroups.from_ids(prompts, [[[pad_id]]] * len(prompts), pad_id).to(device)
    attention_mask = batch.prompt_mask.long()
    prefill = model(
        input_ids=batch.prompt_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = prefill.cache
    cache.batch_repeat_interleave(group_size)
    logits = prefill.logits[:, -1].repeat_interleave(group_size, 0)
    attention_mask = attention_mask.repeat_interleave(group_size, 0)
    position = attention_mask.sum(-1, keepdim=True)
    output = torch.full((len(uniform), max_new_tokens), pad_id, dtype=torch.long)
    rows = torch.arange(len(uniform))  # which row of the output each row of the running batch is
    ends = torch.tensor(list(sampling.eos_ids), device=device)
    for t in range(max_new_tokens):
        token = sample_tokens(logits, sampling.temperature, uniform[rows, t])
        output[rows, t] = token.cpu()
        alive = (~torch.isin(token, ends)).nonzero().squeeze(-1)
        if len(alive) == 0 or t == max_new_tokens - 1:
            break
        if len(alive) < len(rows):
            cache.batch_select_indices(alive)
            rows, token = rows[alive.cpu()], token[alive]
            attention_mask, position = attention_mask[alive], position[alive]
        attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(rows), 1)], dim=1)
        step = model(
            input_ids=token[:, None], attention_mask=attention_mask, position_ids=position, cache=cache, use_cache=True
        )
        logits, position = step.logits[:, -1], position + 1
    return output


def _up_to_eos(ids: list[int], eos_ids: Sequence[int]) -> list[int]:
    """Ids up to and including the first EOS."""
    for position, token in enumerate(ids):
        if token in eos_ids:
            return ids[: position + 1]
    return ids
