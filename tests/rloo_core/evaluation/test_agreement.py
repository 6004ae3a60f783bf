import json

import pytest

from rloo_core.evaluation.agreement import agreement, choice, decided_accuracy, majority


def test_kappa_worked_by_hand():
    """Cohen's own layout: 20 both A, 5 A/B, 10 B/A, 15 both B. Observed 35/50; by chance .5·.6 + .5·.4 = .5."""
    first = [1.0] * 25 + [0.0] * 25
    second = [1.0] * 20 + [0.0] * 5 + [1.0] * 10 + [0.0] * 15
    found = agreement(first, second)
    assert found == pytest.approx((50, 0.7, 0.4))


def test_what_either_judge_left_open_is_left_out():
    assert agreement([1.0, None, 0.0, 0.5], [1.0, 1.0, None, 0.5]) == pytest.approx((2, 1.0, 1.0))
    assert agreement([None], [1.0]) is None
    assert agreement([1.0, 1.0], [1.0, 1.0]) == (2, 1.0, 1.0)
    assert agreement([1.0, 0.0], [0.0, 1.0]).kappa == pytest.approx(-1.0)


def test_two_orders_that_half_agree_count_for_the_side_they_lean_to():
    assert [choice(outcome) for outcome in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_majority():
    assert majority([1.0, 1.0, 0.0]) == 1.0
    assert majority([1.0, 0.5, 0.0]) is None
    assert majority([0.5, 0.5, 0.0]) == 0.5
    assert majority([]) is None


def test_accuracy_counts_clear_preferences_and_halves_ties():
    assert decided_accuracy([1.0, 0.0, 0.5, None, 1.0], [1.0, 1.0, 0.0, 0.0, 0.5]) == pytest.approx(1.5 / 3)
    assert decided_accuracy([1.0], [0.5]) is None


def test_three_people_on_pandalm(shared_data):
    """PandaLM's 999 rows with three votes each, against kappas worked by hand from the file's tables of counts.

    Annotators 1 and 2, rows and columns tie, first, second: [[89, 0, 8], [16, 388, 23], [11, 29, 435]]. Observed
    (89 + 388 + 435) / 999 = 0.912913; by chance (97 * 116 + 427 * 417 + 475 * 466) / 999^2 = 0.411484;
    kappa (0.912913 - 0.411484) / (1 - 0.411484) = 0.852022. Of 1 and 3: [[89, 2, 6], [15, 391, 21], [9, 18, 448]];
    of 2 and 3: [[97, 13, 6], [10, 379, 28], [6, 19, 441]].
    """
    rows = json.loads((shared_data / "pandalm" / "testset-v1.json").read_text())
    as_outcome = {0: 0.5, 1: 1.0, 2: 0.0}
    votes = [[as_outcome[row[f"annotator{k}"]] for row in rows] for k in (1, 2, 3)]
    assert agreement(votes[0], votes[1]) == pytest.approx((999, 0.912913, 0.852022), abs=1e-6)
    assert agreement(votes[0], votes[2]) == pytest.approx((999, 0.928929, 0.878944), abs=1e-6)
    assert agreement(votes[1], votes[2]) == pytest.approx((999, 0.917918, 0.861662), abs=1e-6)
    most = [majority(three) for three in zip(*votes, strict=True)]
    assert [most.count(value) for value in (0.5, 1.0, 0.0, None)] == [105, 422, 472, 0]
