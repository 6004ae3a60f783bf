"""How prompts and completions are laid out as the rows a model reads.

Padded: one row a completion, its prompt repeated: P·K rows of S + T tokens. Every model takes it.

Shared: one row a prompt, followed by its K completions as branches: P rows of S + K·T tokens. Each branch attends
to the prompt and to itself, and its positions go on from the prompt's length, so the prompt is computed once and the
numbers are the same. It needs a decoder that takes `position_ids` and a boolean 4-D mask; `choose_layout` tries it on
the model.
"""

from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rloo_core.types import CompletionGroups

TOLERANCE = 1e-3  # relative difference of float32 hidden states that is still rounding; a wrong mask is off by far more


class Layout(StrEnum):
    """One row a completion, or one row a prompt."""

    PADDED = "padded"
    SHARED = "shared"


class Rows(NamedTuple):
    """What a model is called with, and where its answers are: the last `tokens` columns of a row are completion tokens.

    Attributes:
        inputs: `input_ids`, `attention_mask`, `position_ids` of R rows.
        tokens: Completion columns a row: T, or K·T.
        predictors: For each of them, which of the last `tokens + 1` columns predicts it. Shape [tokens].
    """

    inputs: dict[str, Tensor]
    tokens: int
    predictors: Tensor


def make_rows(groups: CompletionGroups, layout: Layout) -> Rows:
    """Lay out groups; a single completion a prompt has nothing to share and is padded."""
    return _shared_rows(groups) if layout is Layout.SHARED and groups.group_size > 1 else _padded_rows(groups)


def hidden_states(decoder: Any, groups: CompletionGroups, layout: Layout) -> Tensor:
    """Last hidden state at every completion token; what stands at padding means nothing. Shape [P, K, T, hidden]."""
    rows = make_rows(groups, layout)
    hidden: Tensor = decoder(**rows.inputs, use_cache=False).last_hidden_state
    return hidden[:, -rows.tokens :].reshape(*groups.completion_ids.shape, -1)


def predicting_states(decoder: Any, groups: CompletionGroups, layout: Layout) -> Tensor:
    """Last hidden state at the position that predicts each completion token. Shape [P, K, T, hidden]."""
    rows = make_rows(groups, layout)
    hidden: Tensor = decoder(**rows.inputs, use_cache=False).last_hidden_state
    return hidden[:, -(rows.tokens + 1) :][:, rows.predictors].reshape(*groups.completion_ids.shape, -1)


def choose_layout(decoder: Any, wanted: str) -> tuple[Layout, str | None]:
    """The layout to use with a model, tried on the model itself.

    Args:
        decoder: A Hugging Face decoder without head.
        wanted: "auto", "shared" or "padded".

    Returns:
        The layout, and the reason where "auto" had to take the padded one.

    Raises:
        ValueError: If "shared" is wanted and the model does not agree with it.
    """
    if wanted == Layout.PADDED:
        return Layout.PADDED, None
    reason = _why_not_shared(decoder)
    if reason is None:
        return Layout.SHARED, None
    if wanted == Layout.SHARED:
        raise ValueError(f"compute.layout=shared does not work with this model: {reason}; set compute.layout=auto")
    return Layout.PADDED, f"completions do not share their prompt's computation: {reason} (compute.layout)"


def _padded_rows(groups: CompletionGroups) -> Rows:
    prompts, group_size, tokens = groups.completion_ids.shape

    def rows(prompt_part: Tensor, completion_part: Tensor) -> Tensor:
        spread = prompt_part[:, None].expand(-1, group_size, -1).reshape(prompts * group_size, -1)
        return torch.cat([spread, completion_part.reshape(-1, tokens)], dim=1)

    mask = rows(groups.prompt_mask, groups.response_mask).long()
    inputs = {
        "input_ids": rows(groups.prompt_ids, groups.completion_ids),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }
    return Rows(inputs, tokens, torch.arange(tokens, device=mask.device))


def _shared_rows(groups: CompletionGroups) -> Rows:
    prompts, group_size, tokens = groups.completion_ids.shape
    width, device = groups.prompt_ids.shape[1], groups.prompt_ids.device
    steps = torch.arange(tokens, device=device).repeat(group_size)
    prompt_positions = (groups.prompt_mask.long().cumsum(-1) - 1).clamp(min=0)
    branch_positions = groups.prompt_mask.sum(-1, keepdim=True) + steps
    inputs = {
        "input_ids": torch.cat([groups.prompt_ids, groups.completion_ids.reshape(prompts, -1)], dim=1),
        "attention_mask": _branch_mask(groups)[:, None],
        "position_ids": torch.cat([prompt_positions, branch_positions], dim=1),
    }
    first_of_branch = steps == 0  # predicted by the prompt's last token, the others by the token before them
    predictors = torch.arange(group_size * tokens, device=device).masked_fill(first_of_branch, 0)
    assert inputs["input_ids"].shape[1] == width + len(predictors)
    return Rows(inputs, len(predictors), predictors)


def _branch_mask(groups: CompletionGroups) -> Tensor:
    """True where a token (row) may look at another (column): earlier ones of the prompt and of its own branch.

    Padding looks at itself, since a softmax over nothing is NaN. Shape [P, S + K·T, S + K·T].
    """
    prompts, group_size, tokens = groups.completion_ids.shape
    width, device = groups.prompt_ids.shape[1], groups.prompt_ids.device
    prompt_branch = torch.zeros(width, dtype=torch.long, device=device)
    branch = torch.cat([prompt_branch, 1 + torch.arange(group_size, device=device).repeat_interleave(tokens)])
    column = torch.arange(len(branch), device=device)
    visible = (branch[:, None] == branch) | (branch == 0)
    visible &= column <= column[:, None]
    real = torch.cat([groups.prompt_mask, groups.response_mask.reshape(prompts, -1)], dim=1)
    return (visible & real[:, None, :]) | torch.eye(len(branch), dtype=torch.bool, device=device)


@torch.no_grad()
def _why_not_shared(decoder: Any) -> str | None:
    """Why a decoder cannot use the shared layout: its attention, its windows, or ragged random groups that disagree."""
    config = decoder.config
    attention = getattr(config, "_attn_implementation", "unknown")
    if attention != "sdpa":
        return f"its attention is {attention}, which takes no boolean 4-D mask"
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    if getattr(config, "sliding_window", None) or set(kinds) != {"full_attention"}:
        return "it has sliding windows or other attention than full"
    groups = _ragged_groups(min(config.vocab_size, 1000)).to(next(decoder.parameters()).device)
    try:
        padded, shared = (hidden_states(decoder, groups, layout)[groups.response_mask] for layout in Layout)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"it refuses the mask ({str(error).splitlines()[0]})"
    difference = ((padded - shared).abs().max() / padded.abs().max()).item()
    return None if difference <= TOLERANCE else f"hidden states differ by {difference:.1%}"


def _ragged_groups(vocabulary: int) -> CompletionGroups:
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    return CompletionGroups.from_ids([ids(9), ids(4)], [[ids(5), ids(2), ids(7)], [ids(1), ids(6), ids(3)]], 0)
