"""How prompts and completions are laid out as the rows a model reads.

Padded: one row a completion, its prompt repeated: P·K rows of up to S + T tokens. Every model takes it.

Shared: one row a prompt, followed by its K completions as branches: P rows of up to S + K·T tokens. Each branch attends
to the prompt and to itself, and its positions go on from the prompt's length, so the prompt is computed once and the
numbers are the same. Attention over a row grows with its square, so long rows are cut into several with fewer branches.
It needs a decoder that takes `position_ids` and a 4-D mask; `choose_layout` tries it on the model.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rloo_core.cpu_products import fast_products
from rloo_core.types import CompletionGroups
from rloo_core.visibility import FULL, PADDING, PROMPT, SLIDING, attention_masks, layer_windows

TOLERANCE = 1e-3  # relative difference of float32 hidden states that is still rounding; a wrong mask is off by far more
REFUSALS = (RuntimeError, TypeError, ValueError, KeyError, AttributeError, ImportError)  # of what a model lacks


class Layout(StrEnum):
    """One row a completion, or one row a prompt."""

    PADDED = "padded"
    SHARED = "shared"


class Rows(NamedTuple):
    """What a model is called with, and where its answers are.

    Attributes:
        inputs: `input_ids`, `position_ids` of R rows of C columns, and `attention_mask` where causal attention is not
            all that is asked for.
        last: Columns at the end of the rows among which all predictors are.
        tokens: Which of the R·C columns each completion token is; any where it is padding. Shape [P, K, T].
        predictors: Which of them predicts it; any where it is padding. Shape [P, K, T].
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
    if decoder is None:
        raise TypeError("the shared layout depends on who reads it: its attention and its size; pass the decoder")
    prompt, (_, group_size, tokens) = groups.prompt_ids.shape[1], groups.completion_ids.shape
    return _shared_rows(groups, branches_per_row(prompt, tokens, group_size, row_scale(decoder.config)), decoder)


def tokens_held(
    prompts: Sequence[int], completions: Sequence[Sequence[int]], layout: Layout, config: Any = None
) -> Callable[[Sequence[int]], int]:
    """How many tokens, padding included, the rows of some prompts hold: what a budget of tokens is counted in.

    Padded: completions x the longest prompt + completion. Shared: rows x the longest prompt + its completions.

    Args:
        prompts: Tokens of each prompt.
        completions: Tokens of its K completions.
        layout: Shared or padded.
        config: Of the decoder that reads them; needed for the shared layout.

    Returns:
        A function from indices of prompts to the size of `make_rows` of them, without columns that all of them pad.
    """
    starts, lengths = torch.tensor(prompts), torch.tensor(completions)

    def held(batch: Sequence[int]) -> int:
        start, branches = starts[list(batch)], lengths[list(batch)]
        each, group_size = 1, branches.shape[1]
        if layout is Layout.SHARED:
            each = branches_per_row(int(start.max()), int(branches.max()), group_size, row_scale(config))
        rows = start[:, None] + branches.view(len(start), -1, each).sum(-1)
        return rows.numel() * int(rows.max())

    return held


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


def tried_layout(decoder: Any, wanted: str, say: Callable[[str], object]) -> Layout:
    """`choose_layout`, which says why completions cannot share their prompt's computation, where they cannot."""
    layout, reason = choose_layout(decoder, wanted)
    if reason is not None:
        say(reason)
    return layout


def _read(decoder: Any, rows: Rows) -> Tensor:
    """Last hidden states of all columns. Shape [R * C, hidden]."""
    with fast_products(decoder):
        hidden: Tensor = decoder(**rows.inputs, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)


def _padded_rows(groups: CompletionGroups) -> Rows:
    """A completion a row. What is real never looks at the padding behind it, so causal attention needs no mask."""
    rows, _ = _compact_rows(groups, 1)
    return rows


def _shared_rows(groups: CompletionGroups, branches: int, decoder: Any) -> Rows:
    rows, branch = _compact_rows(groups, branches)
    positions = rows.inputs["position_ids"]
    mask = attention_masks(decoder.config, decoder.dtype, branch, positions, branch.shape[1])
    return rows._replace(inputs={**rows.inputs, "attention_mask": mask})


def _compact_rows(groups: CompletionGroups, branches: int) -> tuple[Rows, Tensor]:
    """Rows without gaps: a prompt's tokens, those of one branch after the other, and padding at the end only.

    Returns:
        The rows, without a mask, and whom each column belongs to, see `visibility`. Shape [R, C].
    """
    device, shape = groups.prompt_ids.device, groups.completion_ids.shape
    each = shape[1] // branches  # rows a prompt
    prompt_mask = groups.prompt_mask.repeat_interleave(each, 0)
    mask = groups.response_mask.reshape(len(prompt_mask), branches, -1)
    prompts, lengths = prompt_mask.sum(-1), mask.sum(-1)
    ends = prompts[:, None] + lengths.cumsum(-1)
    columns = int(ends[:, -1].max())
    first = torch.arange(len(prompts), device=device) * columns  # of each row, among all columns
    steps = torch.arange(shape[-1], device=device)
    prompt_steps = (prompt_mask.long().cumsum(-1) - 1).clamp(min=0)
    prompt_places = (first[:, None] + prompt_steps)[prompt_mask]
    places = ((first[:, None] + ends - lengths)[..., None] + steps).masked_fill(~mask, 0)
    last_of_prompt = (first + prompts - 1)[:, None, None]
    predictors = torch.where(steps > 0, places - 1, last_of_prompt).masked_fill(~mask, 0)

    def filled(of_prompts: Tensor, of_completions: Tensor, padding: Tensor) -> Tensor:
        padding[prompt_places] = of_prompts.expand_as(prompt_mask)[prompt_mask]
        padding[places[mask]] = of_completions.expand_as(mask)[mask]
        return padding.view(-1, columns)

    ids = groups.prompt_ids.repeat_interleave(each, 0), groups.completion_ids.reshape(mask.shape)
    owner = torch.arange(1, branches + 1, device=device)[:, None]
    behind = torch.arange(columns, device=device).repeat(len(prompts))
    inputs = {
        "input_ids": filled(*ids, torch.zeros_like(behind)),
        "position_ids": filled(prompt_steps, prompts[:, None, None] + steps, behind),
    }
    branch = filled(torch.full_like(prompts[:1], PROMPT), owner, torch.full_like(behind, PADDING))
    keep = columns - int(prompts.min()) + 1
    return Rows(inputs, keep, places.view(shape), predictors.view(shape)), branch


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
    groups = trial_groups(config).to(next(decoder.parameters()).device)
    try:
        padded = hidden_states(decoder, groups, Layout.PADDED)[groups.response_mask]
        rows = _shared_rows(groups, groups.group_size, decoder)
        shared = _read(decoder, rows)[rows.tokens][groups.response_mask]
    except REFUSALS as error:
        return f"it refuses the mask ({str(error).splitlines()[0]})"
    difference = ((padded - shared).abs().max() / padded.abs().max()).item()
    return None if difference <= TOLERANCE else f"hidden states differ by {difference:.1%}"


def trial_groups(config: Any) -> CompletionGroups:
    """Two prompts with three completions, random; one row exceeds any window where the model reads that far."""
    generator = torch.Generator().manual_seed(0)
    windows = [window for window in layer_windows(config).values() if window is not None]
    limit = getattr(config, "max_position_embeddings", None) or max(windows, default=0) + 64
    long = max(1, min(max([9, *(window - 2 for window in windows)]), limit - 8))

    def ids(count: int) -> list[int]:
        return torch.randint(min(config.vocab_size, 1000), (count,), generator=generator).tolist()

    short = min(4, long)
    return CompletionGroups.from_ids([ids(long), ids(short)], [[ids(5), ids(2), ids(7)], [ids(1), ids(6), ids(3)]], 0)
