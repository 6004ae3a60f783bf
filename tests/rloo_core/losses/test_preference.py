import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.losses.preference import dpo_loss, implicit_rewards, ipo_loss
from rloo_core.losses.ranking import bradley_terry_loss

CHOSEN = torch.tensor([-3.0, -5.0], dtype=torch.float64)
REJECTED = torch.tensor([-4.0, -2.0], dtype=torch.float64)
REF = (torch.tensor([-4.0, -5.0], dtype=torch.float64), torch.tensor([-3.0, -3.0], dtype=torch.float64))
MARGINS = [2.0, -1.0]  # (-3 + 4) - (-4 + 3); (-5 + 5) - (-2 + 3)


def log_sigmoid(x):
    return -math.log1p(math.exp(-x))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dpo_by_hand_and_its_gradient(smoothing):
    chosen = CHOSEN.clone().requires_grad_()
    loss = dpo_loss(chosen, REJECTED, *REF, beta=0.5, label_smoothing=smoothing, denominator=2)
    terms = [(1 - smoothing) * log_sigmoid(0.5 * m) + smoothing * log_sigmoid(-0.5 * m) for m in MARGINS]
    assert loss.item() == pytest.approx(-sum(terms) / 2)
    loss.backward()
    # d/dm -[(1-s) log sigmoid(m) + s log sigmoid(-m)] = sigmoid(m) - (1 - s)
    expected = [0.5 * (1 / (1 + math.exp(-0.5 * m)) - (1 - smoothing)) / 2 for m in MARGINS]
    assert chosen.grad.tolist() == pytest.approx(expected)


def test_dpo_is_the_bradley_terry_loss_of_its_implicit_rewards():
    rewards = implicit_rewards(CHOSEN, REF[0], 0.5), implicit_rewards(REJECTED, REF[1], 0.5)
    assert rewards[0].tolist() == [0.5, 0.0]
    assert rewards[1].tolist() == [-0.5, 0.5]
    assert_close(dpo_loss(CHOSEN, REJECTED, *REF, 0.5, 0.0, 2), bradley_terry_loss(*rewards, 2))


def test_smoothed_labels_want_a_finite_margin():
    margin = torch.tensor([math.log(0.9 / 0.1)], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(1, dtype=torch.float64)
    dpo_loss(margin, zero, zero, zero, beta=1.0, label_smoothing=0.1, denominator=1).backward()
    assert margin.grad.abs().item() < 1e-15


def test_ipo_by_hand_and_its_gradient():
    chosen = CHOSEN.clone().requires_grad_()
    loss = ipo_loss(chosen, REJECTED, *REF, beta=0.25, denominator=2)  # margins 2 and -1, wanted 1 / 0.5 = 2
    assert loss.item() == pytest.approx((0 + 9) / 2)
    loss.backward()
    assert chosen.grad.tolist() == pytest.approx([0.0, 2 * -3 / 2])


def test_the_policy_at_its_reference():
    same = (CHOSEN, REJECTED, CHOSEN, REJECTED)
    assert dpo_loss(*same, 0.1, 0.0, 2).item() == pytest.approx(math.log(2))
    assert ipo_loss(*same, 0.1, 2).item() == pytest.approx(25.0)


def test_splitting_a_step_changes_nothing():
    arguments = (CHOSEN, REJECTED, *REF)
    first, second = ([a[i : i + 1] for a in arguments] for i in range(2))
    assert_close(dpo_loss(*first, 0.3, 0.1, 2) + dpo_loss(*second, 0.3, 0.1, 2), dpo_loss(*arguments, 0.3, 0.1, 2))
    assert_close(ipo_loss(*first, 0.3, 2) + ipo_loss(*second, 0.3, 2), ipo_loss(*arguments, 0.3, 2))


def test_a_huge_margin_stays_finite():
    far = torch.tensor([-1e4])
    assert torch.isfinite(dpo_loss(far, -far, torch.zeros(1), torch.zeros(1), 1.0, 0.0, 1))
