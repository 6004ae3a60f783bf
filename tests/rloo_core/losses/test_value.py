import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.losses.value import explained_variance, value_loss

MASK = torch.tensor([[True, True, True, False]])
RETURNS = torch.tensor([[1.0, 1.0, 1.0, math.nan]])
OLD = torch.tensor([[0.0, 3.0, 1.0, math.nan]])


def value_case():
    return torch.tensor([[0.5, 1.0, 1.1, 7.0]], requires_grad=True)


def test_half_the_squared_error_and_its_gradient():
    values = value_case()
    loss = value_loss(values, OLD, RETURNS, MASK, clip=None, denominator=4)
    assert_close(loss.detach(), torch.tensor(0.5 * (0.25 + 0.0 + 0.01) / 4))
    loss.backward()
    assert_close(values.grad, torch.tensor([[-0.5 / 4, 0.0, 0.1 / 4, 0.0]]))  # the error itself, over N


def test_the_worse_of_the_clipped_and_the_plain_error_counts():
    values = value_case()
    # moved from 0 to 0.2 at most: error 0.8 > 0.5, no gradient; from 3 down to 2.8: 1.8 > 0, no gradient; 1.1 is near 1
    loss = value_loss(values, OLD, RETURNS, MASK, clip=0.2, denominator=1)
    assert_close(loss.detach(), torch.tensor(0.5 * (0.64 + 3.24 + 0.01)))
    loss.backward()
    assert_close(values.grad, torch.tensor([[0.0, 0.0, 0.1, 0.0]]))


def test_a_wide_clip_is_none():
    values = value_case()
    wide = value_loss(values, OLD, RETURNS, MASK, clip=100.0, denominator=3)
    assert_close(wide, value_loss(values, OLD, RETURNS, MASK, clip=None, denominator=3))


def test_targets_get_no_gradient():
    returns, old = torch.ones(1, 1, requires_grad=True), torch.zeros(1, 1, requires_grad=True)
    values = torch.zeros(1, 1, requires_grad=True)
    value_loss(values, old, returns, torch.ones(1, 1, dtype=torch.bool), 0.2, 1).backward()
    assert returns.grad is None
    assert old.grad is None


@pytest.mark.parametrize("clip", [None, 0.2])
def test_a_part_without_any_token_adds_nothing(clip):
    values = value_case()
    loss = value_loss(values, OLD, RETURNS, torch.zeros_like(MASK), clip, denominator=0)
    loss.backward()
    assert loss.item() == 0
    assert (values.grad == 0).all()


def test_explained_variance_by_hand():
    returns = torch.tensor([1.0, 2.0, 3.0, math.nan])
    mask = torch.tensor([True, True, True, False])
    assert_close(explained_variance(returns + 5, returns, mask), torch.tensor(1.0))  # a constant error explains all
    assert_close(explained_variance(torch.zeros(4), returns, mask), torch.tensor(0.0))
    # residuals 0, 0, 1: variance 2/3 (unnormalised) of 2
    assert_close(explained_variance(torch.tensor([1.0, 2.0, 2.0, 9.0]), returns, mask), torch.tensor(1 - 1 / 3))
    assert explained_variance(returns, torch.ones(4), mask).isnan()
