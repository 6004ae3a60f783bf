"""Sums that see only what a mask lets through."""

import torch
from torch import Tensor

Dims = int | tuple[int, ...] | None


def masked_sum(values: Tensor, mask: Tensor, dim: Dims = None) -> Tensor:
    """Sum of the values under a mask; what is masked out may even be NaN.

    Args:
        values: Any shape.
        mask: Bool, same shape.
        dim: Dimensions to sum over; all by default.
    """
    return values.masked_fill(~mask, 0.0).sum(dim)


def masked_deviations(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Values minus their mean under a mask, along one dimension; 0 where masked out, exactly 0 where all are equal.

    One of the values is subtracted before the mean is taken: rounding then has the size of the differences, however
    large the values themselves are.

    Args:
        values: Any shape; what is masked out may even be NaN.
        mask: Bool, same shape.
        dim: Dimension the mean is taken over.
    """
    values = values.masked_fill(~mask, 0.0)
    anchor = values.gather(dim, mask.int().argmax(dim, keepdim=True))
    differences = (values - anchor).masked_fill(~mask, 0.0)
    mean = differences.sum(dim, keepdim=True) / mask.sum(dim, keepdim=True).clamp(min=1)
    return (differences - mean).masked_fill(~mask, 0.0)


def differ_by_rounding_only(values: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Whether all values under a mask are the same number up to a few units in the last place of the largest.

    Such values come from one number computed along different ways; their spread says nothing, and dividing by it would
    turn it into something (NeMo-RL#1518: 0.3, seven times, and 1 became an advantage of 7428).

    Args:
        values: Any shape, floating point; what is masked out may even be NaN.
        mask: Bool, same shape.
        dim: Dimension along which values are compared.

    Returns:
        Bool, `dim` reduced; True where the mask lets nothing through.
    """
    magnitude = values.masked_fill(~mask, 0.0).abs().amax(dim)
    spread = values.masked_fill(~mask, -torch.inf).amax(dim) - values.masked_fill(~mask, torch.inf).amin(dim)
    return spread <= 8 * torch.finfo(values.dtype).eps * magnitude


def last_true(mask: Tensor) -> Tensor:
    """True at the last True of each row, False elsewhere; a row without any stays False.

    Args:
        mask: Bool, shape [..., T].

    Returns:
        Bool, shape [..., T].
    """
    still_to_come = mask.flip(-1).cumsum(-1).flip(-1)
    return mask & (still_to_come == 1)
