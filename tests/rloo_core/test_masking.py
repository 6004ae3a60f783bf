import math

import torch
from torch.testing import assert_close

from rloo_core.masking import differ_by_rounding_only, last_true, masked_deviations, masked_sum

VALUES = torch.tensor([[1.0, math.nan, 5.0], [math.nan, math.nan, 2.0]])
MASK = torch.tensor([[True, False, True], [False, False, True]])


def test_what_is_masked_out_may_be_nan():
    assert masked_sum(VALUES, MASK, dim=-1).tolist() == [6.0, 2.0]
    assert masked_deviations(VALUES, MASK, dim=-1).tolist() == [[-2.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
    assert differ_by_rounding_only(VALUES, MASK, dim=-1).tolist() == [False, True]


def test_deviations_along_any_dimension():
    values = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    everything = torch.ones_like(values, dtype=torch.bool)
    for dim in range(3):
        assert_close(masked_deviations(values, everything, dim), values - values.mean(dim, keepdim=True))


def test_rounding_is_judged_relative_to_the_values():
    everything = torch.ones(2, dtype=torch.bool)
    for scale in (1e-20, 1.0, 1e20):
        assert differ_by_rounding_only(scale * torch.tensor([1.0, 1.0 + 2e-7]), everything, 0)
        assert not differ_by_rounding_only(scale * torch.tensor([1.0, 1.0 + 1e-5]), everything, 0)
    assert not differ_by_rounding_only(torch.tensor([0.0, 1e-30]), everything, 0)


def test_the_last_valid_position():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 0, 1], [1, 1, 1]], dtype=torch.bool)
    assert last_true(mask).int().tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]
