import numpy as np
import pytest

from rloo_core.evaluation.intervals import bootstrap_mean, paired_difference, win_rate, wins


def test_higher_wins_and_a_tie_is_one_half():
    assert wins([2.0, 1.0, 3.0], [1.0, 1.0, 4.0]) == [1.0, 0.5, 0.0]


def test_an_interval_at_the_edge_has_a_width():
    """All the same: a bootstrap sees no spread; Wilson's interval, worked by hand: z^2 / (n + z^2)."""
    nothing_won = win_rate([0.0] * 20)
    assert nothing_won.low == 0.0
    assert nothing_won.high == pytest.approx(0.16113, abs=1e-5)
    assert win_rate([0.5] * 20)[0] == 0.5
    assert win_rate([0.0] * 40, prompts=[i // 2 for i in range(40)]) == nothing_won  # 20 prompts, not 40
    with pytest.raises(ValueError, match="at least one"):
        win_rate([])


def test_the_interval_is_as_wide_as_the_central_limit_says():
    # 400 of 1,000: standard error sqrt(.4 * .6 / 1000) = 0.015492, times 1.96 = 0.030364
    estimate = win_rate([1.0] * 400 + [0.0] * 600)
    assert estimate.value == pytest.approx(0.4)
    assert (estimate.low, estimate.high) == pytest.approx((0.4 - 0.030364, 0.4 + 0.030364), abs=1.5e-3)


def test_completions_of_a_prompt_are_drawn_together():
    """Each outcome four times over is no more evidence than once; drawn one by one it would look like twice as much."""
    outcomes = [1.0] * 40 + [0.0] * 60
    repeated, prompts = [o for o in outcomes for _ in range(4)], [i for i in range(100) for _ in range(4)]
    assert win_rate(repeated, prompts) == pytest.approx(win_rate(outcomes))
    alone = win_rate(repeated)
    assert (alone.high - alone.low) * 2 == pytest.approx(win_rate(outcomes).high - win_rate(outcomes).low, rel=0.06)


def test_prompts_with_more_completions_weigh_more():
    assert bootstrap_mean([1.0, 1.0, 1.0, 0.0], [0, 0, 0, 1]).value == 0.75
    with pytest.raises(ValueError, match="4 values and 3 prompts"):
        bootstrap_mean([1.0] * 4, [0, 1, 2])


def test_the_seed_alone_decides():
    values = list(np.random.default_rng(0).normal(size=50))
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)


def test_few_prompts_are_covered_as_by_student():
    """Four differences 1, 0, 1, 0: percentiles alone would say [0, 1]; widened ones cannot say more than the data."""
    estimate = paired_difference([1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0])
    assert estimate == (0.5, 0.0, 1.0)
    with pytest.raises(ValueError, match="at least two"):
        paired_difference([1.0], [0.0])
    with pytest.raises(ValueError, match="paired values"):
        paired_difference([1.0, 1.0], [0.0, 0.0, 0.0])


def coverage(simulate, truth, times=1000):
    return np.mean([low <= truth <= high for _, low, high in (simulate() for _ in range(times))])


@pytest.mark.parametrize("prompts", [30, 200])
def test_intervals_cover_the_truth_as_often_as_they_say(prompts):
    """1,000 simulated evaluations: a rate and a paired difference."""
    random = np.random.default_rng(prompts)

    def outcomes(chance):
        return (random.random(prompts) < chance).astype(float).tolist()

    covered = {
        "rate": coverage(lambda: win_rate(outcomes(0.4)), 0.4),
        "difference": coverage(lambda: paired_difference(outcomes(0.4), outcomes(0.25)), 0.15),
    }
    assert all(0.93 <= share <= 0.97 for share in covered.values()), covered


def test_a_mean_of_a_few_measured_values_is_covered():
    random = np.random.default_rng(0)
    assert 0.93 <= coverage(lambda: bootstrap_mean(random.normal(size=12).tolist()), 0.0) <= 0.97


def test_intervals_of_clusters_cover_the_truth_and_others_do_not():
    """Four completions a prompt that win or lose together half of the time: only drawing prompts is honest."""
    random = np.random.default_rng(0)
    prompts = [i for i in range(60) for _ in range(4)]

    def outcomes():
        difficulty = random.beta(0.5, 0.5, size=60)
        return (random.random((60, 4)) < difficulty[:, None]).astype(float).ravel().tolist()

    assert 0.93 <= coverage(lambda: win_rate(outcomes(), prompts), 0.5) <= 0.97
    assert coverage(lambda: win_rate(outcomes()), 0.5, 300) < 0.85
