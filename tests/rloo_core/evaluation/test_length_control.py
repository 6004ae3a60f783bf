import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from rloo_core.evaluation.length_control import length_controlled_win_rate, win_rate_by_length


def planted(strength, effect, count, seed=0, longer=8.0):
    """Outcomes of a model that is `strength` better and `longer` tokens longer, before a judge who pays for length."""
    random = np.random.default_rng(seed)
    b = random.integers(20, 60, size=count)
    a = b + random.normal(longer, 8.0, size=count).round()
    difference = a - b
    chance = 1 / (1 + np.exp(-(strength + effect * np.tanh(difference / difference.std()))))
    return (random.random(count) < chance).astype(float).tolist(), list(zip(a.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize(("strength", "effect"), [(0.0, 2.0), (0.8, 1.5), (-0.5, 0.0), (0.5, -1.0)])
def test_a_planted_effect_is_recovered(strength, effect):
    outcomes, lengths = planted(strength, effect, 4000)
    found = length_controlled_win_rate(outcomes, lengths, list(range(len(outcomes))))
    assert found.rate.value == pytest.approx(1 / (1 + np.exp(-strength)), abs=0.03)  # standard error 0.01
    assert found.length_effect == pytest.approx(effect, abs=0.25)  # standard error 0.08


def test_a_judge_who_pays_for_length_alone_is_seen_through():
    """Equal models, one longer: the plain rate is far above one half, the length-controlled one covers it."""
    outcomes, lengths = planted(0.0, 2.0, 1000)
    assert np.mean(outcomes) > 0.7
    rate = length_controlled_win_rate(outcomes, lengths, list(range(1000))).rate
    assert rate.low < 0.5 < rate.high


def test_the_interval_covers_the_truth():
    covered = []
    for seed in range(200):
        outcomes, lengths = planted(0.4, 1.0, 150, seed)
        _, low, high = length_controlled_win_rate(outcomes, lengths, list(range(150)), seed).rate
        covered.append(low <= 1 / (1 + np.exp(-0.4)) <= high)
    assert 0.91 <= np.mean(covered) <= 0.99  # of 200; 0.95 has a standard error of 0.015


def test_it_is_the_logistic_regression_of_a_library():
    """scikit-learn's, unpenalised, a tie counted as half a win and half a loss; ours has a faint penalty."""
    outcomes, lengths = planted(0.3, 1.0, 500)
    outcomes = [0.5 if i % 10 == 0 else outcome for i, outcome in enumerate(outcomes)]
    difference = np.array([a - b for a, b in lengths])
    feature = np.tanh(difference / difference.std())[:, None]
    model = LogisticRegression(C=np.inf, tol=1e-10).fit(
        np.vstack([feature, feature]), np.repeat([1, 0], 500), np.concatenate([outcomes, 1 - np.array(outcomes)])
    )
    found = length_controlled_win_rate(outcomes, lengths, list(range(500)))
    assert found.rate.value == pytest.approx(1 / (1 + np.exp(-model.intercept_[0])), abs=1e-3)
    assert found.length_effect == pytest.approx(model.coef_[0, 0], abs=5e-3)


def test_where_length_says_nothing_it_is_the_plain_rate():
    outcomes = [1.0, 0.0, 0.5, 1.0]
    same = length_controlled_win_rate(outcomes, [(7, 7)] * 4, [0, 1, 2, 3])
    assert (same.rate.value, same.length_effect) == (0.625, 0.0)
    won = length_controlled_win_rate([1.0] * 4, [(9, 7), (8, 7), (7, 8), (2, 1)], [0, 1, 2, 3])
    assert won.rate.value == 1.0
    assert won.rate.low < 1.0


def test_outcomes_that_length_separates_stay_finite():
    lengths = [(10, 5)] * 20 + [(5, 10)] * 20
    found = length_controlled_win_rate([1.0] * 20 + [0.0] * 20, lengths, list(range(40)))
    assert found.rate.value == pytest.approx(0.5, abs=1e-6)
    assert 1.0 < found.length_effect < 20.0


def test_bins_hold_what_their_edges_say():
    outcomes = [1.0, 0.0, 1.0, 0.5, 0.0]
    lengths = [(10, 10), (9, 10), (5, 10), (30, 10), (10, 10)]  # ratios 1, 0.9, 0.5, 3, 1
    bins = win_rate_by_length(outcomes, lengths, [0, 1, 2, 3, 4])
    assert [b.compared for b in bins] == [1, 0, 3, 0, 1]
    assert [b.rate and round(b.rate.value, 3) for b in bins] == [1.0, None, 0.333, None, 0.5]
    assert (bins[0].low, bins[-1].high) == (0.0, float("inf"))
