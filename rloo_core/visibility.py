"""Which token of a row may look at which: the attention masks of rows whose columns belong to branches.

    column      0 1 2 3 | 4 5 6 | 7 8 9    a prompt of four tokens and two completions of three
    branch      0 0 0 0 | 1 1 1 | 2 2 2    0: everybody sees it; k: branch k sees it; -1: padding, seen by nobody real
    position    0 1 2 3 | 4 5 6 | 4 5 6    of the token in its own sequence: what rotary embeddings and windows count

A 4-D mask replaces all that a model would have masked itself, so sliding windows are part of it, counted in positions.
"""

from typing import Any

import torch
from torch import Tensor

PROMPT, PADDING = 0, -1
FULL, SLIDING = "full_attention", "sliding_attention"


def visible(branch: Tensor, position: Tensor, queries: int, window: int | None = None) -> Tensor:
    """True where one of the last `queries` columns may look at a column: earlier, of the prompt or its own branch.

    Padding sees padding, so that no softmax is over nothing.

    Args:
        branch: Whom each column belongs to. Shape [R, C].
        position: Position of each column's token in its sequence. Shape [R, C].
        queries: Q, columns that ask.
        window: Tokens a token sees, itself included; None for all.

    Returns:
        Shape [R, Q, C].
    """
    column = torch.arange(branch.shape[1], device=branch.device)
    asking = branch[:, -queries:, None]
    seen = (branch[:, None] == asking) | ((branch[:, None] == PROMPT) & (asking != PADDING))
    seen &= column <= column[-queries:, None]
    if window is not None:
        seen &= position[:, -queries:, None] - position[:, None] < window
    return seen


def attention_masks(config: Any, dtype: torch.dtype, branch: Tensor, position: Tensor, queries: int) -> Any:
    """The mask in the form a decoder takes: additive for eager attention, blocks for FlexAttention, boolean for SDPA.

    On a CPU, SDPA makes a boolean mask additive by itself, in every layer anew; so it is given an additive one.

    Args:
        config: The decoder's configuration: it names its attention, windows and kinds of layers.
        dtype: Of the decoder's activations.
        branch: See `visible`. Shape [R, C].
        position: See `visible`. Shape [R, C].
        queries: Q, columns that ask.

    Returns:
        One mask [R, 1, Q, C], or one by kind of layer where a model has several kinds.
    """
    windows = layer_windows(config)
    build = _block_mask if config._attn_implementation == "flex_attention" else _dense_mask
    masks = {kind: build(config, dtype, branch, position, queries, window) for kind, window in windows.items()}
    return masks if set(windows) - {FULL} and getattr(config, "layer_types", None) else next(iter(masks.values()))


def layer_windows(config: Any) -> dict[str, int | None]:
    """The window of each kind of layer a decoder has; None where it sees everything."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {FULL: window}
    return {kind: window if kind == SLIDING else None for kind in sorted(set(kinds))}


def _dense_mask(
    config: Any, dtype: torch.dtype, branch: Tensor, position: Tensor, queries: int, window: int | None
) -> Tensor:
    seen = visible(branch, position, queries, window)[:, None]
    if config._attn_implementation != "eager" and seen.device.type != "cpu":
        return seen
    hidden = torch.finfo(dtype).min
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, hidden)


def _block_mask(
    config: Any, dtype: torch.dtype, branch: Tensor, position: Tensor, queries: int, window: int | None
) -> Any:
    """The same rule for FlexAttention, whose kernels skip blocks of which nothing is seen."""
    from torch.nn.attention.flex_attention import create_block_mask

    rows, columns = branch.shape
    rule = block_rule(branch, position, columns - queries, window)
    return create_block_mask(rule, rows, None, queries, columns, device=branch.device)


def block_rule(branch: Tensor, position: Tensor, before: int, window: int | None) -> Any:
    """`visible` as a function of indices (row, head, query, column); `before` columns come before the first query."""

    def rule(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        asking = branch[row, query + before]
        own = branch[row, column]
        seen = ((own == asking) | ((own == PROMPT) & (asking != PADDING))) & (column <= query + before)
        if window is not None:
            seen = seen & (position[row, query + before] - position[row, column] < window)
        return seen

    return rule
