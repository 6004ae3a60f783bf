"""Linear layers of a frozen model on a CPU, with their weights laid out once the way oneDNN reads them.

A decoding step multiplies a few rows with every weight. MKL, which PyTorch uses for float32, lays the weights out anew
in each product: with 16 rows and a head of 50,304 x 512 that takes 25 ms of one core where 10 ms are enough. oneDNN
keeps the layout. Its operators are those that PyTorch's own compiler uses; where they are missing, nothing is packed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

SMALLEST = 2**12  # weights of a layer worth the trouble


@contextmanager
def packed_weights(model: nn.Module, rows: int) -> Iterator[None]:
    """While this is open, the linear layers of a model on the CPU use packed copies of their weights.

    The weights must not change meanwhile, and no gradient reaches them.

    Args:
        model: The model; other layers and other devices are left alone.
        rows: How many rows its layers will mostly be given.
    """
    layers = [m for m in model.modules() if type(m) is nn.Linear and "forward" not in vars(m) and _worth_it(m.weight)]
    try:
        for layer in layers:
            vars(layer)["forward"] = _packed(layer, rows)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _worth_it(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.numel() >= SMALLEST
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _packed(layer: nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
    return partial(_product, weight=weight, bias=layer.bias)


def _product(hidden: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")
    return result
