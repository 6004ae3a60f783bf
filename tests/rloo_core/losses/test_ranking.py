import math

import torch
from torch.testing import assert_close

from rloo_core.losses.ranking import bradley_terry_loss


def test_bradley_terry_by_hand_and_its_gradient():
    # sigmoid(ln 3) = 3/4; d loss / d r(chosen) = -(1 - 3/4)
    chosen = torch.tensor([math.log(3.0), 0.0], requires_grad=True)
    rejected = torch.zeros(2)
    loss = bradley_terry_loss(chosen, rejected, denominator=2)
    assert_close(loss, torch.tensor((-math.log(0.75) - math.log(0.5)) / 2))
    loss.backward()
    assert_close(chosen.grad, torch.tensor([-0.125, -0.25]))


def test_bradley_terry_survives_a_huge_margin():
    assert torch.isfinite(bradley_terry_loss(torch.tensor([-1e4]), torch.tensor([1e4]), 1))
