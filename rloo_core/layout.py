"""How prompts and completions are laid out as the rows a model reads.

Padded: one row a completion, its prompt repeated: P·K rows of S + T tokens. Every model takes it.

Shared: one row a prompt, followed by its K completions as branches: P rows of S + K·T tokens. Each branch attends
to the prompt and to itself, and its positions go on from the prompt's length, so the prompt is computed once and the
numbers are the same. Attention over a row grows with its square, so long rows are cut into several with fewer branches.
It needs a decoder that takes `position_ids` and a 4-D mask; `choose_layout` tries it on the model.
"""

from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rloo_core.cpu_products import fast_products
from rloo_core.types import CompletionGroups
from rloo_core.visibility import FULL, PADDING, PROMPT, SLIDING, attention_masks, layer_windows

TOLERANCE = 1e-3  # relative difference of float32 hidden states that is still rounding; a wrong mask is off by far more


class Layout(StrEnum):
    """One row a completion, or one row a prompt."""

    PADDED = "padded"
    SHARED = "shared"


class Rows(NamedTuple):
    """What a model is called with, and where its answers are.

    Attributes:
        inputs: `input_ids`, `attention_mask`, `position_ids` of R rows of C columns.
        last: Columns at the end of the rows among which all predictors are.
        tokens: Which of the R·C columns each completion token is. Shape [P, K, T].
        predictors: Which of them predicts it. Shape [P, K, T].
    """

    inputs: dict[str, Any]
    last: int
    tokens: Tensor
    predictors: Tensor


def make_rows(groups: CompletionGroups, layout: Layout, decoder: Any = None) -> Rows:
    """Lay out groups; a single completion a prompt has nothing to share and is padded.

    Args:
        groups: Prompts and completions.
        layout: Shared or padded.
        decoder: Who reads the rows: its attention says which form the mask has, its size how long rows may grow.
            Needed for the shared layout.
    """
    if layout is Layout.PADDED or groups.group_size == 1:
        return _padded_rows(groups)
    _, group_size, tokens = groups.completion_ids.shape
    if decoder is None:
        raise TypeError("the shared layout depends on who reads it: its attention and its size; pass the decoder")
    branches = branches_per_row(groups.prompt_ids.shape[1], tokens, group_size, row_scale(decoder.config))
    return _shared_rows(groups, branches, decoder)


def hidden_states(decoder: Any, groups: CompletionGroups, layout: Layout) -> Tensor:
    """Last hidden state at every completion token; what stands at padding means nothing. Shape [P, K, T, hidden]."""
    rows = make_rows(groups, layout, decoder)
    return _read(decoder, rows)[rows.tokens]


def last_hidden_states(decoder: Any, groups: CompletionGroups, layout: Layout) -> Tensor:
    """Last hidden state at the last token of every completion. Shape [P, K, hidden]."""
    rows = make_rows(groups, layout, decoder)
    last = (groups.response_mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    return _read(decoder, rows)[rows.tokens.gather(-1, last).squeeze(-1)]


def branches_per_row(prompt: int, tokens: int, group_size: int, scale: float) -> int:
    """How many of a prompt's K branches share a row, so that reading them all costs least.

    A row of C columns costs C·(1 + C/scale): matrix products grow with C, attention with its square.

    Args:
        prompt: S, columns of the prompt.
        tokens: T, columns of a branch.
        group_size: K.
        scale: Length at which attention costs as much as all matrix products, columns.

    Returns:
        A divisor of K.
    """

    def cost(branches: int) -> float:
        columns = prompt + branches * tokens
        return group_size / branches * columns * (1 + columns / scale)

    return min((b for b in range(1, group_size + 1) if group_size % b == 0), key=cost)


def row_scale(config: Any) -> float:
    """Row length at which a decoder's attention costs as much as its matrix products.

    A token's products in a layer are about 2·(4h² + 2·h·f) operations (hidden size h, feed-forward size f), attention
    over C columns 4·h·C.
    """
    text = config.get_text_config()
    hidden = text.hidden_size
    inner = getattr(text, "intermediate_size", None) or getattr(text, "ffn_dim", None) or 4 * hidden
    return float(2 * hidden + inner)


def predicting_states(decoder: Any, groups: CompletionGroups, layout: Layout) -> Tensor:
    """Last hidden state at the position that predicts each completion token. Shape [P, K, T, hidden]."""
    rows = make_rows(groups, layout, decoder)
    return _read(decoder, rows)[rows.predictors]


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


def _read(decoder: Any, rows: Rows) -> Tensor:
    """Last hidden states of all columns. Shape [R * C, hidden]."""
    with fast_products(decoder):
        hidden: Tensor = decoder(**rows.inputs, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)


def _padded_rows(groups: CompletionGroups) -> Rows:
    prompts, group_size, tokens = groups.completion_ids.shape
    width, device = groups.prompt_ids.shape[1], groups.prompt_ids.device

    def rows(prompt_part: Tensor, completion_part: Tensor) -> Tensor:
        spread = prompt_part[:, None].expand(-1, group_size, -1).reshape(prompts * group_size, -1)
        return torch.cat([spread, completion_part.reshape(-1, tokens)], dim=1)

    mask = rows(groups.prompt_mask, groups.response_mask).long()
    inputs = {
        "input_ids": rows(groups.prompt_ids, groups.completion_ids),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
    }
    row = torch.arange(prompts * group_size, device=device).view(prompts, group_size, 1)
    places = row * (width + tokens) + width + torch.arange(tokens, device=device)
    return Rows(inputs, tokens + 1, places, places - 1)


def _shared_rows(groups: CompletionGroups, branches: int, decoder: Any) -> Rows:
    prompts, group_size, tokens = groups.completion_ids.shape
    width, device = groups.prompt_ids.shape[1], groups.prompt_ids.device
    each = group_size // branches  # rows a prompt

    def rows(prompt_part: Tensor, completion_part: Tensor) -> Tensor:
        return torch.cat([prompt_part.repeat_interleave(each, 0), completion_part.reshape(prompts * each, -1)], dim=1)

    prompt_positions = (groups.prompt_mask.long().cumsum(-1) - 1).clamp(min=0)
    steps = torch.arange(tokens, device=device)
    positions = rows(prompt_positions, groups.prompt_mask.sum(-1)[:, None, None] + steps.expand(group_size, tokens))
    owner = torch.arange(group_size, device=device)[:, None] % branches + 1
    branch = rows(torch.where(groups.prompt_mask, PROMPT, PADDING), torch.where(groups.response_mask, owner, PADDING))
    inputs = {
        "input_ids": rows(groups.prompt_ids, groups.completion_ids),
        "attention_mask": attention_masks(decoder.config, decoder.dtype, branch, positions, branch.shape[1]),
        "position_ids": positions,
    }
    places = torch.arange(prompts * each * branches * tokens, device=device).view(prompts * each, branches, tokens)
    places = places + width * torch.arange(1, prompts * each + 1, device=device)[:, None, None]
    predictors = torch.where(
        steps > 0, places - 1, places[:, :1, :1] - 1
    )  # a prompt's last token predicts the first ones
    shape = groups.completion_ids.shape
    return Rows(inputs, branches * tokens + 1, places.reshape(shape), predictors.reshape(shape))


@torch.no_grad()
def _why_not_shared(decoder: Any) -> str | None:
    """Why a decoder cannot use the shared layout: its attention, its windows, or ragged random groups that disagree."""
    config = decoder.config.get_text_config()
    attention = getattr(config, "_attn_implementation", "unknown")
    if attention not in ("sdpa", "eager", "flex_attention"):
        return f"its attention is {attention}, which takes no 4-D mask"
    other = set(layer_windows(config)) - {FULL, SLIDING}
    if other:
        return f"it has layers of {', '.join(sorted(other))}"
    groups = _ragged_groups(config).to(next(decoder.parameters()).device)
    try:
        padded = hidden_states(decoder, groups, Layout.PADDED)[groups.response_mask]
        rows = _shared_rows(groups, groups.group_size, decoder)
        shared = _read(decoder, rows)[rows.tokens][groups.response_mask]
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        return f"it refuses the mask ({str(error).splitlines()[0]})"
    difference = ((padded - shared).abs().max() / padded.abs().max()).item()
    return None if difference <= TOLERANCE else f"hidden states differ by {difference:.1%}"


def _ragged_groups(config: Any) -> CompletionGroups:
    """Two prompts with three completions, random; one row exceeds any window where the model reads that far."""
    generator = torch.Generator().manual_seed(0)
    windows = [window for window in layer_windows(config).values() if window is not None]
    limit = getattr(config, "max_position_embeddings", None) or max(windows, default=0) + 64
    long = max(1, min(max([9, *(window - 2 for window in windows)]), limit - 8))

    def ids(count: int) -> list[int]:
        return torch.randint(min(config.vocab_size, 1000), (count,), generator=generator).tolist()

    short = min(4, long)
    return CompletionGroups.from_ids([ids(long), ids(short)], [[ids(5), ids(2), ids(7)], [ids(1), ids(6), ids(3)]], 0)
