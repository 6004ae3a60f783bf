"""Statistics over seeds: worked by hand, against slow definitions and scipy, and by simulation."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rloo_core.evaluation.across_seeds import (
    Contrast,
    at_kl,
    common_kl,
    contrast,
    first_reach,
    holm,
    peak_drop,
    seed_interval,
    verdict,
)

REPEATS = 4000  # simulated studies: a share of 5 % is then known to ±0.35 %


def by_hand(difference, low, high):
    return Contrast(difference, low, high, p=0.5, seeds=5, effect=None)


def test_interval_worked_by_hand():
    # 1..5: mean 3, sd sqrt(10 / 4) = 1.58114, over sqrt(5) = 0.70711, times t(0.975, 4) = 2.77645
    assert seed_interval([1, 2, 3, 4, 5]) == pytest.approx((3, 3 - 1.96325, 3 + 1.96325), abs=1e-5)
    # two seeds: t(0.975, 1) = 12.7062, sd = sqrt(2), over sqrt(2) = 1
    assert seed_interval([0, 2]) == pytest.approx((1, 1 - 12.7062, 1 + 12.7062), abs=1e-4)


def test_a_contrast_is_the_paired_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=7), rng.normal(0.5, size=7)
    slow = stats.ttest_rel(first, second)
    found = contrast((first - second).tolist())
    assert (found.difference, found.p) == pytest.approx(((first - second).mean(), slow.pvalue), abs=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(slow.confidence_interval(0.95)), abs=1e-12)
    assert found.effect == pytest.approx(slow.statistic / 7**0.5)
    assert found.seeds == 7


def test_the_p_value_worked_by_hand():
    """With two seeds t is Cauchy: p = 1 - 2 atan(t) / pi; for 1 and 3, t = 2 / 1."""
    assert contrast([1, 3]).p == pytest.approx(1 - 2 * np.arctan(2) / np.pi)


@pytest.mark.parametrize("values", [[0.3, 0.3, 0.3], [0.3, 0.1 + 0.2]])
def test_seeds_that_agree_leave_nothing_to_test(values):
    assert contrast(values) == (0.3, 0.3, 0.3, 1.0, len(values), None)
    assert seed_interval(values) == (0.3, 0.3, 0.3)
    assert contrast([0.0] * 4) == (0.0, 0.0, 0.0, 1.0, 4, None)
    assert "NaN" not in json.dumps(contrast(values))


def test_one_seed_has_no_interval_and_nothing_infinite_enters():
    with pytest.raises(ValueError, match=r"at least 2 values; got 1"):
        seed_interval([1.0])
    with pytest.raises(ValueError, match=r"at least 2 values; got 1"):
        contrast([1.0])
    with pytest.raises(ValueError, match=r"finite values; got .*nan"):
        contrast([1.0, float("nan")])


def test_holm_worked_by_hand():
    # sorted .01 .02 .03 .5, times 4 3 2 1 = .04 .06 .06 .5; .03 may not fall below .02's
    assert holm([0.5, 0.03, 0.01, 0.02]) == pytest.approx([0.5, 0.06, 0.04, 0.06])
    assert holm([0.2, 0.03, 0.02]) == pytest.approx([0.2, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"between 0 and 1; got 1\.5"):
        holm([0.1, 1.5])


@given(st.lists(st.sampled_from([0.0, 1e-4, 0.004, 0.01, 0.011, 0.02, 0.04, 0.3, 1.0]), max_size=8))
def test_holm_is_the_step_down_procedure(p):
    """Reject while p(i) < level / (m - i + 1), stop at the first that is not: the definition, level by level."""
    for level in (0.01, 0.05, 0.0801, 0.2):
        rejected = set()
        for rank, place in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
            if p[place] * (len(p) - rank) >= level:
                break
            rejected.add(place)
        assert {place for place, value in enumerate(holm(p)) if value < level} == rejected


@pytest.mark.parametrize(
    ("claimed", "corrected_p", "sign", "margin", "expected"),
    [
        (by_hand(1.0, 0.5, 1.5), 0.01, 1, 0.2, "supported"),
        (by_hand(1.0, 0.5, 1.5), 0.01, -1, 0.2, "not supported"),
        (by_hand(-1.0, -1.5, -0.5), 0.01, -1, 0.2, "supported"),
        (by_hand(1.0, 0.5, 1.5), 0.05, 1, 0.2, "undecided"),  # not below the level
        (by_hand(0.1, -0.1, 0.3), 0.4, 1, 0.2, "undecided"),  # leaves the margin above
        (by_hand(-0.1, -0.3, 0.1), 0.4, 1, 0.2, "undecided"),  # and below
        (by_hand(0.0, -0.2, 0.2), 1.0, 1, 0.2, "not supported"),  # within, ends included
        (by_hand(0.1, 0.05, 0.15), 0.01, 1, 0.2, "supported"),  # small, but there: the claim is of a sign
        (by_hand(0.1, 0.05, 0.15), 0.06, 1, 0.2, "not supported"),
        (by_hand(0.0, 0.0, 0.0), 1.0, 1, 0.0, "undecided"),  # no margin: nothing is too small to matter
        (by_hand(0.3, 0.3, 0.3), 1.0, 1, 0.5, "undecided"),  # two seeds that coincide are not sure of anything
    ],
)
def test_verdicts(claimed, corrected_p, sign, margin, expected):
    assert verdict(claimed, corrected_p, sign, margin) == expected


def test_a_verdict_needs_a_sign_and_a_margin():
    for sign, margin in ((0, 0.1), (1, -0.1), (1, float("nan"))):
        with pytest.raises(ValueError, match="sign 1 or -1 and a margin of 0 or more"):
            verdict(by_hand(0, -1, 1), 0.5, sign, margin)


def test_value_at_a_kl_budget_is_read_at_the_first_crossing():
    kls, rewards = [0.0, 2.0, 1.0, 4.0], [1.0, 2.0, 5.0, 6.0]
    assert at_kl(kls, rewards, 1.5) == pytest.approx(1.75)  # three quarters of the way up, not on the way back
    assert at_kl(kls, rewards, 2.0) == 2.0
    assert at_kl(kls, rewards, 2.5) == pytest.approx(5.5)  # halfway from 1 to 4
    assert at_kl(kls, rewards, 0.0) == 1.0
    assert at_kl(kls, rewards, 4.0) == 6.0
    assert at_kl(kls, rewards, 4.1) is None
    assert at_kl([1.0, 2.0], [0.0, 0.0], 0.5) is None  # already past it when first measured
    with pytest.raises(ValueError, match="got 2 and 1"):
        at_kl([0.0, 1.0], [0.0], 0.5)


def test_the_common_budget_is_one_that_all_can_be_read_at():
    trajectories = [[0.0, 3.0, 2.0], [0.0, 5.0], [0.0, 1.0, 2.5]]
    assert common_kl(trajectories) == 2.5
    assert all(at_kl(kls, kls, 2.5) == pytest.approx(2.5) for kls in trajectories)
    with pytest.raises(ValueError, match="at least one trajectory"):
        common_kl([])


def test_drop_from_the_peak():
    assert peak_drop([1.0, 4.0, 2.5]) == 1.5
    assert peak_drop([1.0, 2.0]) == 0.0


def test_where_a_curve_first_comes_to_a_level():
    assert first_reach([0, 100, 200], [1.0, 3.0, 2.0], 2.0) == 50
    assert first_reach([10, 20], [5.0, 1.0], 2.0) == 10
    assert first_reach([0, 1], [0.0, 1.0], 1.5) is None


def test_five_seeds_are_covered_by_t_and_not_by_a_bootstrap():
    """Over 4,000 studies t covers 95 %; the percentiles of a bootstrap of five cover about 84 %."""
    rng = np.random.default_rng(1)
    studies = rng.normal(2.0, 0.7, size=(REPEATS, 5))
    by_t = np.array([seed_interval(seeds)[1:] for seeds in studies])
    drawn = rng.integers(5, size=(REPEATS, 500, 5))
    means = np.take_along_axis(studies[:, None, :], drawn, axis=2).mean(axis=2)
    by_bootstrap = np.quantile(means, [0.025, 0.975], axis=1).T
    covered = {
        name: float(((ends[:, 0] <= 2.0) & (ends[:, 1] >= 2.0)).mean())
        for name, ends in (("t", by_t), ("bootstrap", by_bootstrap))
    }
    print(covered)  # t 0.95, bootstrap 0.84
    assert covered["t"] == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / REPEATS))
    assert covered["bootstrap"] == pytest.approx(0.84, abs=0.02)


@pytest.mark.parametrize("shared", [0.0, 0.6])
def test_holm_keeps_the_chance_of_a_false_claim_at_its_level(shared):
    """Eight claims of which three are true; without a correction a fifth of all studies makes a false one.

    Claims that share a method share its noise (`shared` is their correlation); Holm needs no independence.
    """
    rng = np.random.default_rng(2)
    truth = np.array([0.0] * 5 + [1.5] * 3)
    common, own = rng.normal(size=(REPEATS, 5, 1)), rng.normal(size=(REPEATS, 5, 8))
    seeds = truth + np.sqrt(shared) * common + np.sqrt(1 - shared) * own
    p = stats.ttest_1samp(seeds, 0.0, axis=1).pvalue
    corrected = np.array([holm(row) for row in p.tolist()])
    false = {
        name: float((values[:, :5] < 0.05).any(axis=1).mean()) for name, values in (("no", p), ("Holm", corrected))
    }
    print(false)  # no correction 0.22 (independent), Holm 0.04
    assert false["Holm"] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / REPEATS)
    assert false["no"] > 0.12
    assert (corrected[:, 5:] < 0.05).mean() > 0.2  # and what is there is still found


def test_a_difference_at_the_margin_is_seldom_called_too_small():
    """The 95 % interval within ±margin is two one-sided tests at 2.5 %: so often does a true `margin` pass."""
    studies = np.random.default_rng(3).normal(1.0, 0.2, size=(REPEATS, 5))
    said = [verdict(contrast(seeds), 1.0, 1, margin=1.0) for seeds in studies]
    assert said.count("not supported") / REPEATS == pytest.approx(0.025, abs=0.01)
    assert "supported" not in said


def test_differences_that_coincide_by_chance_make_no_claim():
    """Two seeds, 64 prompts: differences of win rates lie on a grid, so that two often agree."""
    rng = np.random.default_rng(4)
    studies = np.round(rng.normal(0.0, 0.09, size=(REPEATS, 7, 2)) * 64) / 64
    agreed = (studies[..., 0] == studies[..., 1]) & (studies[..., 0] != 0.0)
    assert agreed.any(axis=1).mean() > 0.2
    false = 0
    for study in studies:
        contrasts = [contrast(seeds) for seeds in study]
        said = [verdict(c, p, 1, margin=0.02) for c, p in zip(contrasts, holm([c.p for c in contrasts]), strict=True)]
        false += "supported" in said
    assert false / REPEATS <= 0.05
