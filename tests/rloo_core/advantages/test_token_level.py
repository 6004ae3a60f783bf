import math

import pytest
import torch
from torch.testing import assert_close

from rloo_core.advantages import generalized_advantages, token_rewards, whiten

NAN = math.nan
RAGGED = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)


def random_case(seed=0, rows=6, tokens=7):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, rows, tokens, dtype=torch.float64, generator=generator)
    lengths = torch.randint(0, tokens + 1, (rows, 1), generator=generator)
    return rewards, values, torch.arange(tokens) < lengths


def test_each_token_pays_its_kl_and_the_last_valid_one_gets_the_score():
    kl = torch.tensor([[0.5, -1.0, 2.0, NAN], [1.0, NAN, NAN, NAN]])
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    expected = torch.tensor([[-0.05, 0.1, 2.8, 0.0], [6.9, 0.0, 0.0, 0.0]])
    assert_close(token_rewards(torch.tensor([3.0, 7.0]), kl, 0.1, mask), expected)


@pytest.mark.parametrize("seed", range(5))
def test_they_sum_to_the_shaped_reward_of_the_completion(seed):
    kl, _, mask = random_case(seed)
    mask[:, 0] = True
    scores = torch.arange(6, dtype=torch.float64)
    summed = torch.stack([scores[b] - 0.3 * sum(kl[b, mask[b]].tolist()) for b in range(6)])
    assert_close(token_rewards(scores, kl, 0.3, mask).sum(-1), summed)


def test_rewards_are_data_and_not_a_path_for_gradients():
    kl = torch.ones(1, 2, requires_grad=True)
    assert not token_rewards(torch.ones(1), kl, 0.1, torch.ones(1, 2, dtype=torch.bool)).requires_grad


def test_gae_by_hand():
    # rewards 1, 2; values 0.5, 0.25; lambda 0.5: delta_1 = 2 - 0.25 = 1.75; delta_0 = 1 + 0.25 - 0.5 = 0.75
    advantages, returns = generalized_advantages(
        torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[0.5, 0.25, NAN]]), torch.tensor([[True, True, False]]), 0.5
    )
    assert_close(advantages, torch.tensor([[0.75 + 0.5 * 1.75, 1.75, 0.0]]))
    assert_close(returns, torch.tensor([[2.125, 2.0, 0.0]]))


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_gae_equals_its_definition(gae_lambda):
    """A[t] = sum over l of lambda^l * delta[t + l], completion by completion, without padding."""
    rewards, values, mask = random_case()
    advantages, returns = generalized_advantages(rewards, values, mask, gae_lambda)
    for b in range(len(rewards)):
        length = int(mask[b].sum())
        v = [*values[b, :length].tolist(), 0.0]
        delta = [rewards[b, t].item() + v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            expected = sum(gae_lambda ** (s - t) * delta[s] for s in range(t, length))
            assert advantages[b, t].item() == pytest.approx(expected, abs=1e-12)
            assert returns[b, t].item() == pytest.approx(expected + v[t], abs=1e-12)
    assert (advantages[~mask] == 0).all()
    assert (returns[~mask] == 0).all()


def test_lambda_one_is_the_return_to_go_minus_the_value():
    rewards, values, mask = random_case(1)
    to_go = (rewards * mask).flip(-1).cumsum(-1).flip(-1)
    advantages, returns = generalized_advantages(rewards, values, mask, 1.0)
    assert_close(advantages, (to_go - values) * mask)
    assert_close(returns, to_go * mask)


def test_neither_padding_nor_gaps_are_there():
    """A completion with holes in its mask has the advantages of the same completion without them."""
    rewards, values, _ = random_case(2)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1, 0]] * 6, dtype=torch.bool)
    whole = generalized_advantages(rewards, values, mask, 0.9)
    valid = mask[0]
    dense = generalized_advantages(rewards[:, valid], values[:, valid], mask[:, valid], 0.9)
    assert_close(whole[0][:, valid], dense[0])
    assert_close(whole[1][:, valid], dense[1])


def test_the_critic_gets_no_gradient_through_advantages():
    values = torch.ones(1, 2, requires_grad=True)
    found = generalized_advantages(torch.ones(1, 2), values, torch.ones(1, 2, dtype=torch.bool), 1.0)
    assert not any(part.requires_grad for part in found)


def test_whitening_by_hand_leaves_padding_alone():
    # 1, 2, 6 are let through: mean 3, sample std sqrt(7)
    advantages = torch.tensor([[1.0, 2.0, NAN], [6.0, 50.0, 50.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    expected = torch.tensor([[-2.0, -1.0, 0.0], [3.0, 0.0, 0.0]]) / math.sqrt(7)
    assert_close(whiten(advantages, mask), expected)


def test_whitened_values_have_mean_zero_and_std_one_at_any_scale():
    advantages, _, mask = random_case(3)
    for scale, shift in ((1.0, 0.0), (1e-6, 0.0), (1e3, 1e5)):
        whitened = whiten(advantages * scale + shift, mask)
        assert_close(whitened[mask].mean().item(), 0.0, rtol=0, atol=1e-9)
        assert_close(whitened[mask].std().item(), 1.0, rtol=0, atol=1e-9)
        assert (whitened[~mask] == 0).all()


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3])
def test_whitening_equal_values_gives_zero(value):
    assert (whiten(torch.full((4, 4), value), RAGGED) == 0).all()
    one = torch.tensor(value)
    assert (whiten(torch.stack([one, torch.nextafter(one * 1.0, one + 1)]) + 1, RAGGED[0, :2]) == 0).all()
    assert (whiten(torch.randn(4, 4), torch.zeros(4, 4, dtype=torch.bool)) == 0).all()
