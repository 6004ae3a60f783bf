"""Rollouts: completions sampled from a policy, each with its own stream of random numbers."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rloo_core.attention import attention_for_decoding
from rloo_core.batching import token_budget_batches
from rloo_core.cpu_products import packed_weights
from rloo_core.decoding import Decoder
from rloo_core.heads import decoder_of, unwrapped
from rloo_core.layout import Layout, tokens_held
from rloo_core.random_streams import generator_for
from rloo_core.token_choice import EVERY_TOKEN, Truncation, choose_tokens
from rloo_core.types import CompletionGroups, Ids

__all__ = [
    "Samples",
    "Sampling",
    "StopStrings",
    "Truncation",
    "finished",
    "sample_completions",
    "sample_with_logprobs",
    "stop_strings",
    "uniform_numbers",
]


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


@dataclass(frozen=True)
class StopStrings:
    """Texts that end a completion; the token that completes one is its last.

    Attributes:
        texts: What to stop at.
        decode: Text of token ids.
    """

    texts: tuple[str, ...]
    decode: Callable[[Sequence[int]], str]

    def __call__(self, ids: Sequence[int]) -> bool:
        """Whether the end of a completion holds one of them. A text of n bytes lies within n tokens."""
        tail = self.decode(ids[-max(len(text.encode()) for text in self.texts) :])
        return any(text in tail for text in self.texts)


def stop_strings(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> StopStrings | None:
    """What to stop at, read as the tokenizer writes it; None where there is nothing."""
    decode = partial(tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return StopStrings(tuple(texts), decode) if texts else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled.

    Attributes:
        temperature: Of the softmax; 0 is greedy.
        max_new_tokens: Tokens after which a completion is cut off, unfinished.
        eos_ids: Tokens that end a completion; the one that did is kept as its last token.
        pad_id: Fills the columns after the end.
        max_tokens: Budget of a batch, rows x row length.
        truncation: Which tokens may be drawn; by default all.
        stop: Texts that end a completion.
        layout: Whether completions share their prompt's computation; the numbers are the same.
        dtype: Of the weights while sampling, e.g. bfloat16; None is the model's own.
    """

    temperature: float
    max_new_tokens: int
    eos_ids: tuple[int, ...]
    pad_id: int
    max_tokens: int
    truncation: Truncation = EVERY_TOKEN
    stop: StopStrings | None = None
    layout: Layout = Layout.PADDED
    dtype: torch.dtype | None = None


class Samples(NamedTuple):
    """Completions, and what the sampler itself thought of their tokens.

    Attributes:
        groups: Prompts and completions, on the CPU.
        logprobs: Of the tokens under the model that sampled, at the sampling temperature, untruncated; zero at padding.
            They come for free. A trainer's own differ by rounding, or by more where weights were sampled from in
            bfloat16. Shape [P, K, T].
    """

    groups: CompletionGroups
    logprobs: Tensor


def sample_completions(
    model: nn.Module, prompts: Sequence[Ids], group_size: int, sampling: Sampling, uniform: Tensor
) -> CompletionGroups:
    """Sample K completions of each prompt, see `sample_with_logprobs`."""
    return sample_with_logprobs(model, prompts, group_size, sampling, uniform).groups


@torch.no_grad()
def sample_with_logprobs(
    model: nn.Module, prompts: Sequence[Ids], group_size: int, sampling: Sampling, uniform: Tensor
) -> Samples:
    """Sample K completions of each prompt. Completions that have ended cost nothing.

    A prompt is prefilled once for all completions that begin together: all K where a row holds them and the budget has
    room for that row; where they are spread over rows of which some wait for room, once more for those.

    Args:
        model: A Hugging Face causal language model.
        prompts: Token ids of each prompt.
        group_size: K.
        sampling: Temperature, length, special tokens, batch budget.
        uniform: Random numbers of each row, from `uniform_numbers`. Shape [P * K, >= max_new_tokens].

    Returns:
        The P prompts with their completions, in the order of `prompts`.
    """
    writer = model if sampling.dtype is None else _in_dtype(model, sampling.dtype)
    drawn = _Drawn(sampling, uniform, len(prompts) * group_size)
    with packed_weights(writer, rows=len(uniform)), attention_for_decoding(unwrapped(writer)):
        if sampling.layout is Layout.SHARED:
            Decoder(
                writer, decoder_of(unwrapped(writer)), prompts, group_size, sampling.max_new_tokens,
                sampling.max_tokens, sampling.pad_id, drawn,
            ).run()  # fmt: skip
        else:
            _decode_padded(writer, prompts, group_size, sampling, drawn)
    lists = drawn.lists()
    groups = [lists[p * group_size : (p + 1) * group_size] for p in range(len(prompts))]
    found = CompletionGroups.from_ids(prompts, groups, sampling.pad_id)
    width = found.completion_ids.shape[-1]
    logprobs = drawn.logprobs[:, :width].view(found.completion_ids.shape)
    return Samples(found, logprobs.masked_fill(~found.response_mask, 0.0))


def finished(groups: CompletionGroups, eos_ids: Sequence[int], stop: StopStrings | None = None) -> Tensor:
    """True where a completion ends with an EOS token or a stop string rather than being cut off. Shape [P, K]."""
    last = (groups.response_mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    final_tokens = groups.completion_ids.gather(-1, last).squeeze(-1)
    ended = torch.isin(final_tokens, torch.tensor(list(eos_ids), device=final_tokens.device))
    if stop is None:
        return ended
    stopped = [[stop(ids) for ids in group] for group in groups.completion_lists()]
    return ended | torch.tensor(stopped, device=ended.device)


class _Drawn:
    """The tokens drawn so far; called with logits, it draws the next ones.

    Args:
        sampling: How to draw, and what ends a completion.
        uniform: Random numbers. Shape [N, >= max_new_tokens].
        count: N, completions.
    """

    def __init__(self, sampling: Sampling, uniform: Tensor, count: int) -> None:
        self.sampling = sampling
        self.uniform = uniform
        self.tokens = torch.full((count, sampling.max_new_tokens), sampling.pad_id, dtype=torch.long)
        self.logprobs = torch.zeros(count, sampling.max_new_tokens)
        self.lengths = torch.zeros(count, dtype=torch.long)
        self._ends = torch.tensor(list(sampling.eos_ids))

    def __call__(self, logits: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Next tokens of completions `which` [N] from logits [N, V], and which of them are the last."""
        sampling, step = self.sampling, self.lengths[which]
        choice = choose_tokens(logits, sampling.temperature, self.uniform[which, step], sampling.truncation)
        tokens = choice.tokens.cpu()
        self.tokens[which, step] = tokens
        self.logprobs[which, step] = choice.logprobs.float().cpu()
        self.lengths[which] = step + 1
        last = torch.isin(tokens, self._ends) | (step + 1 == sampling.max_new_tokens)
        if sampling.stop is not None:
            last |= torch.tensor([sampling.stop(self._ids(index)) for index in which.tolist()])
        return choice.tokens, last

    def lists(self) -> list[list[int]]:
        """Token ids of each completion."""
        return [self._ids(index) for index in range(len(self.tokens))]

    def _ids(self, index: int) -> list[int]:
        return self.tokens[index, : int(self.lengths[index])].tolist()


def _decode_padded(
    model: Any, prompts: Sequence[Ids], group_size: int, sampling: Sampling, drawn: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    """A row a completion, for models that take no 4-D mask: a prompt's cache is fanned out to its rows."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths) + sampling.max_new_tokens
    each = max(1, min(group_size, sampling.max_tokens // longest))  # completions of a prompt in one batch
    for start in range(0, group_size, each):
        size = min(each, group_size - start)
        held = tokens_held(lengths, [[sampling.max_new_tokens] * size] * len(prompts), Layout.PADDED)
        for batch in token_budget_batches(len(prompts), held, sampling.max_tokens):
            which = torch.tensor([i * group_size + k for i in batch for k in range(start, start + size)])
            _decode_batch(model, [prompts[i] for i in batch], size, sampling.pad_id, which, drawn)


def _decode_batch(
    model: Any,
    prompts: Sequence[Ids],
    group_size: int,
    pad_id: int,
    which: Tensor,
    drawn: Callable[..., tuple[Tensor, Tensor]],
) -> None:
    """The decoding loop of one batch; rows that have ended leave it."""
    device = next(model.parameters()).device
    batch = CompletionGroups.from_ids(prompts, [[[pad_id]]] * len(prompts), pad_id).to(device)
    attention_mask = batch.prompt_mask.long()
    output = model(
        input_ids=batch.prompt_ids,
        attention_mask=attention_mask,
        position_ids=(attention_mask.cumsum(-1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = output.cache
    cache.batch_repeat_interleave(group_size)
    logits = output.logits[:, -1].repeat_interleave(group_size, 0)
    attention_mask = attention_mask.repeat_interleave(group_size, 0)
    position = attention_mask.sum(-1, keepdim=True)
    while True:
        token, last = drawn(logits, which)
        alive = (~last).nonzero().squeeze(-1)
        if len(alive) == 0:
            return
        if len(alive) < len(which):
            which, alive = which[alive], alive.to(device)
            cache.batch_select_indices(alive)
            token, attention_mask, position = token[alive], attention_mask[alive], position[alive]
        attention_mask = torch.cat([attention_mask, attention_mask.new_ones(len(which), 1)], dim=1)
        output = model(
            input_ids=token[:, None], attention_mask=attention_mask, position_ids=position, cache=cache, use_cache=True
        )
        logits, position = output.logits[:, -1], position + 1


def _in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a model whose weights have another type; its buffers (rotary frequencies) keep theirs."""
    weights = {id(p): nn.Parameter(p.detach().to(dtype), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, weights)
