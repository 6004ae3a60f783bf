"""A key-value cache with its memory set aside once: growing by a column copies nothing but that column."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, [R, heads, capacity, size], of which the first columns are filled.

    Args:
        capacity: Columns there is room for.
    """

    is_sliding = False

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        def room(states: Tensor) -> Tensor:
            rows, heads, _, size = states.shape
            return states.new_empty(rows, heads, self.capacity, size)

        self.keys, self.values = room(key_states), room(value_states)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        start, self.length = self.length, self.length + key_states.shape[-2]
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


def row_cache(capacity: int) -> Cache:
    """An empty cache with room for `capacity` columns in each layer."""
    layer: Any = partial(RowLayer, capacity)
    return Cache(layer_class_to_replicate=layer)


def gathered(cache: Cache, rows: Tensor, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of some rows at some columns, layer by layer.

    Args:
        cache: Where they are.
        rows: Which row each new row comes from. Shape [R].
        columns: Which of its columns each new column is. Shape [R, C].

    Returns:
        For each layer keys and values, [R, heads, C, size].
    """
    return _each(cache, lambda states: _pick(states, rows, columns))


def filled_cache(parts: list[list[tuple[Tensor, Tensor]]], capacity: int) -> Cache:
    """A cache whose rows are those of several parts, one below the other; all have as many columns."""
    cache = row_cache(capacity)
    for index, layers in enumerate(zip(*parts, strict=True)):
        keys, values = (
            torch.cat([layer[which] for layer in layers]) if len(layers) > 1 else layers[0][which] for which in (0, 1)
        )
        cache.update(keys, values, index)
    return cache


def _each(cache: Cache, change: Callable[[Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
    layers: Any = cache.layers
    return [(change(layer.keys), change(layer.values)) for layer in layers]


def _pick(states: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    heads = torch.arange(states.shape[1], device=states.device)[:, None]
    return states[rows[:, None, None], heads, columns[:, None]]
