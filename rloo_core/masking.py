"""Sums and means that see only what a mask lets through."""

from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Sum of the values under a mask; what is masked out may even be NaN.

    Args:
        values: Any shape.
        mask: Bool, same shape.
        dim: Dimensions to sum over; all by default.
    """
    return values.masked_fill(~mask, 0.0).sum(dim)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values under a mask; 0 where the mask is empty."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)
