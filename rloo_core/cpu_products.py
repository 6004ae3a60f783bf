"""Linear layers on a CPU through oneDNN, which is faster here than MKL, PyTorch's choice for float32.

`packed_weights`, for sampling: a decoding step multiplies a few rows with every weight, and MKL lays the weights out
anew in each product. With 16 rows and a head of 50,304 x 512 that takes 25 ms of one core where 10 ms are enough.
oneDNN keeps the layout.

`fast_products`, for training: the same products with gradients, about a tenth faster at a thousand rows.

The operators are those that PyTorch's own compiler uses; where they are missing, nothing changes.
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
    with _replaced(model, (torch.float32, torch.bfloat16), lambda layer: _packed(layer, rows)):
        yield


@contextmanager
def fast_products(model: nn.Module) -> Iterator[None]:
    """While this is open, the linear layers of a float32 model on the CPU multiply through oneDNN, with gradients.

    Models that compute activations again in the backward pass, when this is closed, are left alone.
    """
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        yield
        return
    with _replaced(model, (torch.float32,), lambda layer: partial(_linear, layer)):
        yield


@contextmanager
def _replaced(
    model: nn.Module, dtypes: tuple[torch.dtype, ...], make: Callable[[nn.Linear], Callable[[Tensor], Tensor]]
) -> Iterator[None]:
    layers = [m for m in model.modules() if type(m) is nn.Linear and "forward" not in vars(m)]
    layers = [layer for layer in layers if layer.weight.dtype in dtypes and _worth_it(layer.weight)]
    try:
        for layer in layers:
            vars(layer)["forward"] = make(layer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def slow_bfloat16(sampling_precision: str, device: torch.device) -> str | None:
    """What to tell who samples from bfloat16 weights on a CPU that has to imitate them; None if all is well."""
    if sampling_precision != "bfloat16" or device.type != "cpu" or _multiplies_bfloat16():
        return None
    return (
        "this processor has no instructions for bfloat16 (AVX-512 BF16, AMX), so sampling takes longer with "
        "compute.sampling_precision=bfloat16 than with float32"
    )


def _multiplies_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _worth_it(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.numel() >= SMALLEST
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype == torch.float32 or _multiplies_bfloat16())
    )


def _packed(layer: nn.Linear, rows: int) -> Callable[[Tensor], Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
    return partial(_product, weight=weight, bias=layer.bias)


def _product(hidden: Tensor, weight: Any, bias: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")
    return result


def _linear(layer: nn.Linear, hidden: Tensor) -> Tensor:
    if hidden.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(hidden, layer.weight, layer.bias)
    if not torch.is_grad_enabled():
        return _product(hidden, layer.weight, layer.bias)
    result: Tensor = _Linear.apply(hidden, layer.weight, layer.bias)
    return result


class _Linear(torch.autograd.Function):
    """hidden Wᵀ + bias."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return _product(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        hidden, weight = ctx.saved_tensors
        gradient, rows = upstream[0].contiguous(), upstream[0].reshape(-1, upstream[0].shape[-1])
        to_hidden = _product(gradient, weight.t()) if ctx.needs_input_grad[0] else None
        to_weight = rows.t() @ hidden.reshape(-1, hidden.shape[-1]) if ctx.needs_input_grad[1] else None
        to_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        return to_hidden, to_weight, to_bias
