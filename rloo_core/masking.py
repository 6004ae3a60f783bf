"""Sums that see only what a mask lets through."""

from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Sum of the values under a mask; what is masked out may even be NaN.

    Args:
        values: Any shape.
        mask: Bool, same shape.
        dim: Dimensions to sum over; all by default.
    """
    return values.masked_fill(~mask, 0.0).sum(dim)
