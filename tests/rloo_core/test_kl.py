import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.kl import adapted_kl_coef, kl_per_token, kl_shaped_rewards, sequence_kl

LOGPROBS = torch.tensor([[[-1.0, -2.0, -9.0], [-0.5, -7.0, -7.0]]])
REF_LOGPROBS = torch.tensor([[[-1.5, -1.0, 4.0], [-0.25, 3.0, math.nan]]])
MASK = torch.tensor([[[True, True, False], [True, False, False]]])
ESTIMATORS = ("k1", "k2", "k3")


@pytest.mark.parametrize(
    ("estimator", "of_half", "of_minus_one", "of_minus_quarter"),
    [
        ("k1", 0.5, -1.0, -0.25),
        ("k2", 0.125, 0.5, 0.03125),
        ("k3", math.exp(-0.5) - 0.5, math.exp(1.0) - 2.0, math.exp(0.25) - 1.25),
    ],
)
def test_estimators_by_hand(estimator, of_half, of_minus_one, of_minus_quarter):
    """Log-ratios 0.5 and -1; -0.25. Padding, NaN included, is not looked at."""
    expected = torch.tensor([[of_half + of_minus_one, of_minus_quarter]])
    assert_close(sequence_kl(LOGPROBS, REF_LOGPROBS, MASK, estimator), expected)
    tokens = torch.tensor([[[of_half, of_minus_one, 0.0], [of_minus_quarter, 0.0, 0.0]]])
    assert_close(kl_per_token(LOGPROBS, REF_LOGPROBS, estimator, MASK), tokens)
    assert_close(kl_per_token(LOGPROBS, REF_LOGPROBS, estimator)[MASK], tokens[MASK])


def test_another_estimator_is_refused():
    with pytest.raises(ValueError, match="k1, k2, k3; got 'k4'"):
        kl_per_token(LOGPROBS, REF_LOGPROBS, "k4")


def test_k1_and_k3_estimate_the_kl():
    """Summed over every token with its probability, k1 and k3 give KL(pi || pi_ref) exactly; k2 to second order."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 6, dtype=torch.float64, generator=generator).log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    every_token = (policy[:, None], reference[:, None], torch.ones(6, 1, dtype=torch.bool))
    for estimator in ("k1", "k3"):
        assert_close((policy.exp() * sequence_kl(*every_token, estimator)).sum(), exact)
    near = (policy + 1e-3 * reference).log_softmax(-1)
    exact = (policy.exp() * (policy - near)).sum()
    k2 = (policy.exp() * kl_per_token(policy, near, "k2")).sum()
    assert abs(k2 / exact - 1) < 1e-2


def test_gradients_as_a_loss_term():
    """With d = logp - ref: k1 has slope 1, k2 has slope d, k3 has slope 1 - exp(-d); padding has none."""
    for estimator, slope in (("k1", 1.0), ("k2", 0.5), ("k3", 1 - math.exp(-0.5))):
        logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
        mask = torch.tensor([True, False])
        kl_per_token(logprobs, torch.tensor([-1.5, math.nan]), estimator, mask).sum().backward()
        assert_close(logprobs.grad, torch.tensor([slope, 0.0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_logprobs_have_kl_exactly_zero_in_any_precision(estimator, dtype):
    logprobs = -10 * torch.rand(4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert (kl_per_token(logprobs, logprobs, estimator) == 0).all()


def test_half_precision_is_widened_before_the_difference():
    """In bfloat16 the k3 of a log-ratio of 1/128 would be 0 or negative."""
    logprobs = torch.tensor([-1.0], dtype=torch.bfloat16)
    kl = kl_per_token(logprobs, logprobs - 0.0078125, "k3")
    assert kl.dtype == torch.float32
    assert_close(kl, torch.tensor([math.exp(-0.0078125) - 1 + 0.0078125]), rtol=1e-2, atol=0)


def test_k3_of_a_tiny_log_ratio_does_not_cancel():
    tiny = torch.tensor([1e-3])
    assert_close(kl_per_token(tiny, torch.zeros(1), "k3"), torch.tensor([5e-7]), rtol=1e-2, atol=0)


def test_shaped_reward_subtracts_kl_and_carries_no_gradient():
    kl = torch.tensor([[2.0, -1.0]], requires_grad=True)
    shaped = kl_shaped_rewards(torch.tensor([[1.0, 1.0]]), kl, kl_coef=0.1)
    assert_close(shaped, torch.tensor([[0.8, 1.1]]))
    assert not shaped.requires_grad


@pytest.mark.parametrize(
    ("kl_mean", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1 + 0.1 * 0.05),  # 10 % above, 500 of 10000 completions
        (60.0, 1 + 0.2 * 0.05),  # never more than 20 %
        (-3.0, 1 - 0.2 * 0.05),
    ],
)
def test_the_coefficient_follows_the_target(kl_mean, factor):
    assert adapted_kl_coef(0.1, kl_mean, target=6.0, horizon=10000, completions=500) == pytest.approx(0.1 * factor)


@pytest.mark.parametrize(("target", "horizon"), [(0.0, 1000), (6.0, 100)])
def test_a_coefficient_that_could_change_sign_is_refused(target, horizon):
    with pytest.raises(ValueError, match=f"kl_target={target} and kl_horizon={horizon}"):
        adapted_kl_coef(0.1, 1.0, target, horizon, completions=500)


def test_a_kl_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="got nan"):
        adapted_kl_coef(0.1, math.nan, 6.0, 10000, 500)
