"""Figures: what is drawn, told apart without colour, and apart from what trains."""

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from scipy import stats

from pipelines.code_digest import code_digests, core_packages
from rloo_core.evaluation.figures.looks import LOOKS, look, save
from rloo_core.evaluation.figures.studies import Bar, ForestRow, Series, against_kl, bars, curves, forest


def legend(figure):
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def test_redrawing_a_study_trains_nothing_again():
    """The stages draw their run; a study's figures and statistics are no part of any stage's code."""
    for stage in ("policy", "evaluation"):
        reached = set(code_digests(f"rloo_core.stages.{stage}", core_packages()))
        assert "rloo_core.evaluation.figures.runs" in reached
        assert not reached & {
            "rloo_core.evaluation.figures.looks",
            "rloo_core.evaluation.figures.studies",
            "rloo_core.evaluation.across_seeds",
        }


def test_every_series_has_a_look_of_its_own():
    for part in ("color", "marker", "line", "hatch"):
        assert len({getattr(one, part) for one in LOOKS}) == len(LOOKS) == 8
    assert len({look(place) for place in range(24)}) == 24


def test_a_curve_is_the_mean_of_its_seeds_to_the_shortest_and_its_band_a_t_interval():
    figure = curves([Series("RLOO", [0, 10, 20], [[1.0, 2.0, 9.0], [3.0, 4.0], [5.0, 9.0]])], "step", "reward")
    (axes,) = figure.axes
    assert axes.lines[0].get_xydata().tolist() == [[0, 3], [10, 5]]
    half = stats.t.ppf(0.975, 2) * np.std([1, 3, 5], ddof=1) / 3**0.5
    band = axes.collections[0].get_paths()[0].vertices
    at_start = band[band[:, 0] == 0, 1]
    assert (at_start.min(), at_start.max()) == pytest.approx((3 - half, 3 + half))
    assert legend(figure) == ["RLOO"]


def test_one_seed_has_a_curve_and_no_band():
    (axes,) = curves([Series("RLOO", [0, 1], [[1.0, 2.0]])], "step", "reward").axes
    assert len(axes.lines) == 1
    assert not axes.collections


def test_two_seeds_are_shown_themselves():
    """Their intervals would hide all other curves."""
    (axes,) = curves([Series("RLOO", [0, 1], [[0.0, 1.0], [0.5, 2.0]])], "step", "reward").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.25, 1.5], [0.0, 1.0], [0.5, 2.0]]
    assert not axes.collections


def test_a_wide_interval_does_not_flatten_the_bars():
    (axes,) = bars([Bar("RLOO", [0.5, 1.0])], "reward").axes
    assert np.ptp(axes.get_xlim()) < 3.3  # from zero the values span 1, the interval 6.4


@pytest.mark.parametrize(
    ("places", "log", "shown"),
    [
        ([2, 4, 8, 16], True, ["2", "4", "8", "16"]),
        ([0, 1, 3, 5], False, ["0", "1", "3", "5"]),
        ([0, 1, 3], True, ["0", "1", "3"]),  # zero has a place on a logarithmic axis
    ],
)
def test_the_places_of_a_study_are_its_ticks(places, log, shown):
    seeds = [[float(x) for x in places]]
    (axes,) = curves([Series("RLOO", places, seeds)], "K", "reward", log_x=log).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == shown
    assert np.isfinite(axes.transData.transform([(places[0], 0.0)])).all()


def test_values_that_are_no_numbers_have_their_names_below_the_axis():
    names = {0.0: "clip", 1.0: "neither clip nor value clip nor normalisation of the loss"}
    (axes,) = curves([Series("PPO", [0, 1], [[1.0, 2.0]])], "parts", "reward", names=names).axes
    assert [text.get_text().replace("\n", " ") for text in axes.get_xticklabels()] == list(names.values())
    assert axes.get_xticks().tolist() == [0.0, 1.0]


def test_places_too_close_for_labels_get_ordinary_ticks():
    (axes,) = curves([Series("PPO", [0, 0.95, 1], [[1.0, 2.0, 3.0]])], "λ", "reward").axes
    assert [text.get_text() for text in axes.get_xticklabels()] != ["0", "0.95", "1"]


def test_both_rewards_stand_over_the_same_kl():
    seeds = [[(0.0, 0.0), (2.0, 1.0)], [(0.0, 1.0), (4.0, 3.0), (9.0, 9.0)]]
    figure = against_kl({"proxy": {"a": seeds, "b": []}, "gold": {"b": seeds[:1], "a": seeds}}, budget=1.5)
    top, bottom = figure.axes
    assert top.get_shared_x_axes().joined(top, bottom)
    mean = next(line for line in top.lines if line.get_label() == "a")
    assert mean.get_xydata().tolist() == [[0, 0.5], [3, 2]]
    colors = {line.get_label(): line.get_color() for line in bottom.lines}
    assert mean.get_color() == colors["a"] != colors["b"]  # one colour a series in all panels
    assert sorted(legend(figure)) == ["a", "b"]


def test_a_bar_is_the_mean_and_each_seed_a_dot():
    figure = bars([Bar("RLOO", [1.0, 3.0], "K = 2"), Bar("RLOO", [5.0], "K = 4"), Bar("RAFT", [], "K = 2")], "reward")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [2.0, 5.0]
    assert axes.patches[0].get_hatch() != axes.patches[1].get_hatch()
    dots = [c.get_offsets().tolist() for c in axes.collections if isinstance(c, PathCollection)]
    assert [[x for x, _ in one] for one in dots] == [[1.0, 3.0], [5.0]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["RLOO"]
    assert legend(figure) == ["K = 2", "K = 4"]


def test_verdicts_differ_in_shape_and_the_margin_is_each_claims_own():
    rows = [
        ForestRow("first", 1.0, 0.5, 1.5, 0.2, "supported"),
        ForestRow("second", 0.0, -0.1, 0.1, 0.3, "not supported"),
        ForestRow("one seed", 0.4, None, None, 0.1, "undecided"),
    ]
    figure = forest(rows, "reward")
    (axes,) = figure.axes
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1 and line.get_marker() in "oXs"]
    assert len({line.get_marker() for line in marks}) == 3
    assert [patch.get_width() for patch in axes.patches[:3]] == pytest.approx([0.4, 0.6, 0.2])
    assert legend(figure) == ["supported", "not supported", "undecided", "margin"]
    assert [text.get_text() for text in axes.texts] == ["first", "second", "one seed"]


def test_nothing_to_draw_draws_nothing():
    for figure in (curves([], "x", "y"), curves([Series("a", [], [])], "x", "y"), bars([], "x"), forest([])):
        assert len(figure.axes) == 1


def test_saved_twice_it_is_the_same_and_a_dot_in_the_name_stays(tmp_path):
    def drawn():
        return curves([Series("RLOO", [0, 1], [[1.0, 2.0], [1.5, 2.5]])], "step", "reward")

    paths = save(drawn(), tmp_path / "figures" / "sigma_0.5")
    assert [path.name for path in paths] == ["sigma_0.5.png", "sigma_0.5.svg"]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in save(drawn(), tmp_path / "figures" / "sigma_0.5")] == first
    assert b">RLOO<" in first[1]  # text stays text
