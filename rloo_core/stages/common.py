"""What several stages do alike: read tables and models that earlier stages left, and write a model."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.attention import use_attention
from rloo_core.data.synthetic import gold_rewards
from rloo_core.data.tables import read_table
from rloo_core.data.tokens import token_ids
from rloo_core.evaluation.assessment import Prompts
from rloo_core.layout import Layout, tried_layout
from rloo_core.models import load_causal_lm
from rloo_core.observer import Observer
from rloo_core.rewards import FunctionReward, Reward
from rloo_core.rollout import Sampling, stop_strings
from rloo_core.settings import ComputeSettings
from rloo_core.token_choice import EVERY_TOKEN, Truncation
from rloo_core.tokenization import eos_token_ids, load_tokenizer

MODEL = "model"


def stage_tokenizer(inputs: Mapping[str, Path]) -> PreTrainedTokenizerBase:
    """The tokenizer of all stages, as the data stage left it."""
    return load_tokenizer(str(inputs["data"] / "tokenizer"))


def stage_policy(
    directory: Path, tokenizer: PreTrainedTokenizerBase, compute: ComputeSettings, device: torch.device
) -> PreTrainedModel:
    """The causal language model that a stage left, on a device, with the attention that is asked for."""
    model: Any = load_causal_lm(directory / MODEL, tokenizer)
    moved: PreTrainedModel = model.to(device)
    use_attention(moved, compute.attention)
    return moved


def check_context(model: PreTrainedModel, longest: int, remedy: str) -> None:
    """Refuse rows that are longer than the model can read, before anything is computed.

    Args:
        model: Its config may say how many positions it has.
        longest: Tokens of the longest row.
        remedy: The settings to lower.

    Raises:
        ValueError: If a row does not fit.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    if isinstance(limit, int) and longest > limit:
        raise ValueError(f"the longest row has {longest} tokens, but the model reads at most {limit}; lower {remedy}")


def given_completions(
    inputs: Mapping[str, Path],
    table: str,
    split: str,
    columns: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    chat_template: bool,
    compute: ComputeSettings,
    layout: Layout = Layout.PADDED,
    config: Any = None,
) -> GivenCompletions:
    """Token ids of a table's prompts and of its completion columns, for a model that lays them out in some way."""
    prompts, *replies = token_ids(inputs["data"], table, split, ["prompt", *columns], tokenizer, chat_template)
    return GivenCompletions(
        prompts,
        list(zip(*replies, strict=True)),
        pad_id(tokenizer),
        compute.max_tokens_per_batch,
        layout,
        config,
    )


def prompts_of(
    inputs: Mapping[str, Path],
    split: str,
    tokenizer: PreTrainedTokenizerBase,
    chat_template: bool,
    limit: int | None = None,
) -> Prompts:
    """Token ids and rows of a split's prompts, at most `limit` of them."""
    rows = read_table(inputs["data"], "prompts", split)[:limit]
    (ids,) = token_ids(inputs["data"], "prompts", split, ["prompt"], tokenizer, chat_template, limit)
    return Prompts(ids, rows)


def gold_reward(prompts: Prompts, tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int]) -> Reward | None:
    """The true reward of the embedded task, whose prompts carry their facts; None for any other data."""
    if not prompts.rows or "facts" not in prompts.rows[0]:
        return None
    return FunctionReward(gold_rewards, tokenizer, eos_ids)


def stage_layout(model: PreTrainedModel, compute: ComputeSettings, observer: Observer) -> Layout:
    """Whether completions share their prompt's computation; says so where they cannot.

    It is tried on the model, where the model lies and with the attention that is asked for.
    """
    use_attention(model, compute.attention)
    return tried_layout(model.base_model, compute.layout, observer.message)


def make_sampling(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    temperature: float,
    max_new_tokens: int,
    compute: ComputeSettings,
    layout: Layout = Layout.PADDED,
    truncation: Truncation = EVERY_TOKEN,
    stop: Sequence[str] = (),
    dtype: torch.dtype | None = None,
) -> Sampling:
    """How completions are sampled from a model, with its own end-of-sequence tokens and texts that end them, too."""
    return Sampling(
        temperature,
        max_new_tokens,
        end_tokens(model, tokenizer),
        pad_id(tokenizer),
        compute.max_tokens_per_batch,
        truncation,
        stop_strings(stop, tokenizer),
        layout=layout,
        dtype=dtype,
    )


def sampling_dtype(compute: ComputeSettings) -> torch.dtype | None:
    """Type of the weights while sampling; None is the model's own."""
    return torch.bfloat16 if compute.sampling_precision == "bfloat16" else None


def end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends a completion: the tokenizer's and those of the model's generation config."""
    return eos_token_ids(tokenizer, getattr(model, "generation_config", None))


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    identifier: Any = tokenizer.pad_token_id
    return int(identifier)


def steps_for(epochs: float, rows: int, batch_size: int) -> int:
    """Steps that `epochs` passes over `rows` rows take; the last one is filled up from the next pass."""
    return max(1, math.ceil(epochs * rows / batch_size))


def use_threads(compute: ComputeSettings) -> None:
    """Pin torch's threads; the number is part of the result's identity."""
    torch.set_num_threads(compute.threads)
