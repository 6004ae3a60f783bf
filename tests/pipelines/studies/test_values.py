"""Measures, tables, claims and verdicts of made-up results, against numbers worked by hand."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console as RichConsole

from pipelines.studies.definition import FigureWish, Measure
from pipelines.studies.drawings import drawing
from pipelines.studies.measures import Result, common, value
from pipelines.studies.page import console, markdown, page
from pipelines.studies.results import Results
from pipelines.studies.tables import table
from pipelines.studies.values import Values
from tests.pipelines.studies.examples import small

KL, GOLD, STD = "validation/kl", "validation/gold_reward", "reward/std"
T_2 = 4.302652729749464  # 97.5 % quantile of t with 2 degrees of freedom


def result(cell, seed, gold, kls=(0.0, 1.0, 2.0), std=2.0):
    curve = [{"step": step, GOLD: y, KL: x} for step, (y, x) in enumerate(zip(gold, kls, strict=True), start=1)]
    curve.insert(1, {"step": 1.5, "loss": 0.0})  # steps without a measurement
    return Result(cell, seed, {STD: std}, curve, completions=32)


def cell(method, sigma):
    return {"method": method, "sigma": sigma}


RLOO_0, RLOO_3, RAFT_0, RAFT_3 = cell("rloo", "0.0"), cell("rloo", "3.0"), cell("raft", "0.0"), cell("raft", "3.0")
# gold reward after the last step, by seed
LAST = {
    ("rloo", "0.0"): [5.0, 6.0, 7.0],
    ("rloo", "3.0"): [4.0, 4.0, 4.0],
    ("raft", "0.0"): [5.0, 5.0, 5.0],
    ("raft", "3.0"): [1.0, 0.0, 2.0],
}
ROBUST = {
    "says": "RAFT loses more than RLOO",
    "measure": "gold",
    "contrast": [
        {"weight": 1, "cell": RAFT_0}, {"weight": -1, "cell": RAFT_3},
        {"weight": -1, "cell": RLOO_0}, {"weight": 1, "cell": RLOO_3},
    ],
    "margin": 0.1,
}  # fmt: skip


def results():
    return [
        result(cell(*of), seed, [0.0, each + 1.0, each])
        for of, column in LAST.items() for seed, each in enumerate(column)
    ]  # fmt: skip


@pytest.fixture
def found(tmp_path):
    return lambda given=None, **changes: Values(small(tmp_path, **changes), results() if given is None else given)


# one point


def of(take, metric=GOLD, **more):
    return Measure(label="x", of=metric, take=take, **more)


UP_AND_DOWN = result(RLOO_0, 0, [1.0, 4.0, 3.0], kls=[0.0, 2.0, 1.5])


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (of("first"), 1.0),
        (of("last"), 3.0),
        (of("last", scale=100.0), 300.0),
        (of("peak"), 4.0),
        (of("mean"), 8 / 3),
        (of("drop"), 1.0),
        (of("first_reach", level=2.5), 1.5),  # half way from step 1 to step 2
        (of("first_reach", level=2.5, over="completions"), 48.0),  # 32 a step
        (of("first_reach", level=4.5), None),
        (of("at_kl", kl=0.5), 1.75),  # a quarter of the way from 1 to 4
        (of("at_kl", kl=2.5), None),
        (of("at_kl"), None),  # common to what?
        (of(None, STD), 2.0),
        (of(None, "nothing"), None),
        (of("last", "nothing"), None),
    ],
)
def test_a_measure_of_one_point(measure, expected):
    assert value(measure, UP_AND_DOWN) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("take", ["first", "last", "peak", "mean", "drop", "first_reach", "at_kl"])
def test_a_training_that_diverged_has_no_measure(take):
    for broken in (math.nan, math.inf):
        more = {"at_kl": {"kl": 0.5}, "first_reach": {"level": 0.0}}.get(take, {})
        assert value(of(take, **more), result(RLOO_0, 0, [1.0, broken, 3.0])) is None
        assert value(of(None, STD), result(RLOO_0, 0, [1.0, 2.0, 3.0], std=broken)) is None


def test_the_common_kl_is_the_least_of_the_largest():
    far, near = result(RLOO_0, 0, [0, 0, 0], [0.0, 3.0, 2.0]), result(RAFT_0, 0, [0, 0, 0], [0.0, 1.0, 1.5])
    assert common([far, near]) == 1.5
    assert common([far, Result(RAFT_0, 0, {}, [{"step": 1}], 32)]) is None
    assert common([far, result(RAFT_0, 0, [0, 0, 0], [0.0, math.nan, 1.0])]) is None
    assert common([]) is None


# cells


def test_matched_kl_is_matched_seed_by_seed_among_what_is_compared(found):
    """Gold rises by 1 a nat for rloo, by 2 for raft; the least KL is raft's: 1 for seed 0, 2 for seed 1."""
    rising = [
        *(result(RLOO_0, seed, [0.0, 2.0, 4.0], [0.0, 2.0, 4.0]) for seed in (0, 1)),
        *(result(RAFT_0, seed, [0.0, end, 2 * end], [0.0, end / 2, end]) for seed, end in enumerate([1.0, 2.0])),
    ]
    values = found(rising)
    assert values.common([RLOO_0, RAFT_0]) == {0: 1.0, 1: 2.0}
    assert values.values("at", RLOO_0, [RLOO_0, RAFT_0]) == pytest.approx({0: 1.0, 1: 2.0})
    assert values.values("at", RAFT_0, [RLOO_0, RAFT_0]) == pytest.approx({0: 2.0, 1: 4.0})
    assert values.values("at", RLOO_0) == pytest.approx({0: 4.0, 1: 4.0})
    assert values.paired("at", RLOO_0, RAFT_0).difference == pytest.approx(-1.5)
    numbers = Results(values, [], "").numbers()
    assert numbers["at/method=rloo/sigma=0.0"] == pytest.approx(1.5)  # MLflow's list shows what the tables show


def test_a_share_is_the_axis_number_by_the_measure(found):
    given = [result(RLOO_3, 0, [0, 0, 0], std=2.0), result(RLOO_3, 1, [0, 0, 0], std=0.0), result(RLOO_0, 0, [0, 0, 0])]
    assert found(given).values("share", RLOO_3) == {0: 1.5}  # σ = 3 by a standard deviation of 2
    assert found(given).values("share", RLOO_0) == {0: 0.0}
    assert found(given).of_point("share", given[0]) == 1.5
    measures = {"share": {"label": "x", "of": STD, "share_of": "sigma", "scale": 100.0}}
    assert found(given, measures=measures).values("share", RLOO_3) == {0: 150.0}


def test_paired_differences(found):
    contrast = found().paired("gold", RLOO_0, RAFT_0)  # 0, 1, 2
    half = T_2 / math.sqrt(3)
    assert contrast[:3] == pytest.approx((1.0, 1.0 - half, 1.0 + half))
    assert contrast.p == pytest.approx(0.2254033)  # t = √3, 2 degrees of freedom: 1 - √(3/5)
    assert (contrast.seeds, contrast.effect) == (3, pytest.approx(1.0))


def test_pairs_are_of_the_seeds_that_both_have(found):
    given = [each for each in results() if (each.cell, each.seed) != (RAFT_0, 1)]
    contrast = found(given).paired("gold", RLOO_0, RAFT_0)  # 0 and 2
    assert (contrast.difference, contrast.seeds) == (pytest.approx(1.0), 2)
    assert found(given[:4]).paired("gold", RLOO_0, RAFT_0) is None


def test_a_claims_contrast_is_a_difference_of_differences(found):
    """RAFT loses 4, 5, 3; RLOO 1, 2, 3."""
    values = found(claims=[ROBUST])
    assert values.sums(values.study.claims[0]) == pytest.approx({0: 3.0, 1: 3.0, 2: 0.0})


def test_a_claim_may_say_that_no_more_than_so_much_is_lost(found):
    values = found(claims=[ROBUST | {"above": -0.5}])
    assert values.sums(values.study.claims[0]) == pytest.approx({0: 3.5, 1: 3.5, 2: 0.5})


def test_a_term_that_names_several_cells_is_their_mean(found):
    contrast = [{"weight": 2, "cell": {"method": "rloo"}}, {"weight": -1, "cell": RAFT_0}]
    values = found(claims=[ROBUST | {"contrast": contrast}])
    assert values.sums(values.study.claims[0]) == pytest.approx({0: 4.0, 1: 5.0, 2: 6.0})  # 2 * (5 + 4) / 2 - 5, ...


# tables


def test_a_table_of_means(found):
    values = found(tables=[{"caption": "All", "measures": ["gold"]}])
    made = table(values, values.study.tables[0])
    assert made.columns == ["method", "σ", "gold reward"]
    half = T_2 / math.sqrt(3)
    assert made.rows == [
        ["rloo", "0.0", f"6.00 ± {half:.2f}"], ["rloo", "3.0", "4.00 ± 0.00"],
        ["raft", "0.0", "5.00 ± 0.00"], ["raft", "3.0", f"1.00 ± {half:.2f}"],
    ]  # fmt: skip


def test_a_table_says_what_is_missing(found):
    given = [result(RLOO_0, 0, [0, 0, -1.0]), result(RLOO_0, 2, [0, 0, -1.0]), result(RLOO_3, 0, [0, 0, 2.0])]
    values = found(given, tables=[{"caption": "", "measures": ["gold", "at"], "where": {"method": "rloo"}}])
    made = table(values, values.study.tables[0])
    assert made.columns[0] == "σ"
    assert [row[1] for row in made.rows] == ["−1.00 ± 0.00 (n = 2)", "2.00 (n = 1)"]
    assert made.note == "Matched KL: for each seed the largest that all rows reach, 2.00 to 2.00 nats."


def test_differences_are_between_cells_that_agree_on_all_other_axes(found):
    """raft - rloo: 0, -1, -2 without noise (p = 0.2254), -3, -4, -2 with it (t = -3√3: p = 0.0351); Holm: x 1, x 2."""
    values = found(tables=[{"caption": "", "measures": ["gold"], "against": {"method": "rloo"}}])
    made = table(values, values.study.tables[0])
    assert [row[:4] for row in made.rows] == [
        ["raft", "0.0", "gold reward", "−1.00"], ["raft", "3.0", "gold reward", "−3.00"]
    ]  # fmt: skip
    t = 3 * math.sqrt(3)
    p = 1 - t / math.sqrt(t * t + 2)  # two-sided, 2 degrees of freedom
    assert [row[5] for row in made.rows] == ["0.225", f"{2 * p:.3f}"]
    assert [row[6:] for row in made.rows] == [["−1.0", "3"], ["−3.0", "3"]]
    assert "corrected for the 2 comparisons" in made.note


def test_differences_from_one_cell(found):
    values = found(tables=[{"caption": "", "measures": ["gold"], "against": RLOO_0}])
    made = table(values, values.study.tables[0])
    assert [(row[0], row[1], row[3]) for row in made.rows] == [
        ("rloo", "3.0", "−2.00"), ("raft", "0.0", "−1.00"), ("raft", "3.0", "−5.00")
    ]  # fmt: skip


def test_comparisons_that_are_missing_are_not_corrected_for(found):
    given = [each for each in results() if each.cell in (RLOO_0, RAFT_0)]
    values = found(given, tables=[{"caption": "", "measures": ["gold"], "against": {"method": "rloo"}}])
    made = table(values, values.study.tables[0])
    assert made.rows[0][5] == "0.225"
    assert made.rows[1][3:] == ["–"] * 5
    assert "corrected for the 1 comparison of this table" in made.note


REACHING = {"gold": {"label": "completions", "of": GOLD, "take": "first_reach", "level": 5.5, "digits": 0}}


def test_seeds_that_never_reach_a_level_are_not_left_out_in_silence(found):
    """A mean of those that do would favour who seldom does; a contrast, too."""
    wishes = [{"caption": "", "measures": ["gold"]}, {"caption": "", "measures": ["gold"], "against": RLOO_0}]
    values = found(measures=REACHING, tables=wishes, claims=claims({}))
    means, differences = (table(values, wish) for wish in values.study.tables)
    # highest: 6, 7, 8 for RLOO without noise, 5 with; 6 for RAFT without noise, 2, 1 and 3 with
    assert [row[2] for row in means.rows][1::2] == ["reached by 0 of 3", "reached by 0 of 3"]
    assert "±" in means.rows[0][2]
    assert [row[3] == "–" for row in differences.rows] == [True, False, True]
    assert values.claimed(values.study.claims[0]) is None


def test_a_seed_without_a_cell_has_no_common_kl(found):
    """The table says `all rows`: a cell whose point failed has none."""
    values = found([each for each in results() if (each.cell, each.seed) != (RAFT_3, 0)])
    assert values.common(values.study.cells) == {0: None, 1: 2.0, 2: 2.0}
    assert list(values.values("at", RLOO_0, values.study.cells)) == [1, 2]


def test_a_curve_whose_first_seed_diverged_is_drawn_from_the_others(found):
    given = results()
    given[0] = replace(given[0], curve=[{"step": 1, GOLD: math.nan, KL: math.nan}])
    (axes,) = drawing(found(given), FigureWish(kind="curves", y=[GOLD], caption="", where=RLOO_0)).axes
    assert list(axes.get_lines()[0].get_ydata()) == pytest.approx([0.0, 7.5, 6.5])


def test_a_metric_that_no_point_has_is_named(found):
    wrong = {"gold": {"label": "x", "of": "policy/clip_frac", "take": "last"}, "std": {"label": "x", "of": STD}}
    figures = [{"kind": "curves", "y": [GOLD], "caption": ""}]
    made = Results(found(measures=wrong, figures=figures), [], "").page
    assert made.notes == ["No point has measured policy/clip_frac"]
    assert Results(found([]), [], "").page.notes == []


def test_one_seed_has_a_difference_and_no_verdict(found):
    (row,) = Results(found([each for each in results() if each.seed == 1], claims=claims({})), [], "").claims
    assert (row.difference, row.low, row.corrected_p, row.verdict) == (5 - 0 - 6 + 4, None, None, "undecided")


# results


def claims(*changes):
    return [ROBUST | each for each in changes]


def test_verdicts(found):
    noise = {"says": "noise costs RAFT", "contrast": [{"weight": 1, "cell": RAFT_0}, {"weight": -1, "cell": RAFT_3}]}
    opposite = {"contrast": [{"weight": -1, "cell": RAFT_0}, {"weight": 1, "cell": RAFT_3}]}
    none = {"contrast": [{"weight": 1, "cell": RAFT_0}, {"weight": -1, "cell": RAFT_0}]}
    rows = Results(found(claims=claims(noise, opposite, none, {})), [], "").claims
    assert [row.verdict for row in rows] == ["undecided"] * 4  # the third has no scatter, which proves nothing
    t = 4 * math.sqrt(3)
    p = 1 - t / math.sqrt(t * t + 2)  # differences 4, 5, 3: p = 0.0202; alone below 0.05, of four claims not
    assert rows[0].p == pytest.approx(p)
    assert rows[0].corrected_p == rows[1].corrected_p == pytest.approx(4 * p)
    alone = Results(found(claims=claims(noise)), [], "").claims[0]
    assert (alone.verdict, alone.difference, alone.seeds) == ("supported", pytest.approx(4.0), 3)
    assert Results(found(claims=claims(opposite)), [], "").claims[0].verdict == "not supported"


def test_a_claim_of_which_points_failed_is_not_judged_on_the_others(found):
    """RAFT's third seed is lost. By the other two, 3.9 and 4.1, it would be supported: shown, and no verdict."""
    noise = {"says": "noise costs RAFT", "contrast": [{"weight": 1, "cell": RAFT_0}, {"weight": -1, "cell": RAFT_3}]}
    other = {"says": "noise costs RLOO", "contrast": [{"weight": 1, "cell": RLOO_0}, {"weight": -1, "cell": RLOO_3}]}
    failed = [("method=raft, sigma=3.0, seed=2", "diverged"), ("method=raft, sigma=0.0, seed=2", "diverged")]
    last = [(RLOO_0, [5.0, 5.1, 5.2]), (RLOO_3, [1.0, 1.0, 1.0]), (RAFT_0, [4.9, 5.1]), (RAFT_3, [1.0, 1.0])]
    given = [result(cell, seed, [0.0, 0.0, each]) for cell, column in last for seed, each in enumerate(column)]
    made = Results(found(given, claims=claims(noise, other)), failed, "")
    row, tested = made.claims
    assert (row.text, row.verdict) == ("noise costs RAFT (2 points failed)", "undecided")
    assert (row.difference, row.seeds, row.corrected_p) == (pytest.approx(4.0), 2, None)
    assert row.low < row.difference < row.high
    assert tested.text == "noise costs RLOO"
    assert tested.corrected_p == tested.p < row.p  # one claim is tested
    shown = io.StringIO()
    RichConsole(file=shown, width=100).print(console(made.page))
    page_of_html, words = page(made.page), shown.getvalue()
    for text in (page_of_html, markdown(made.page), words):
        assert "noise costs RAFT (2 points failed)" in text
        assert "(2 points failed)" not in text.replace("noise costs RAFT (2 points failed)", "")
    assert "not tested since points failed" in words
    assert made.rows()["claims"][0]["text"] == row.text
    assert dict(made.page.facts)["claims"].startswith("two-sided paired t tests, corrected for the 1 that could be")
    assert Results(found(given, claims=claims(noise)), failed[:1], "").claims[0].text.endswith(" (1 point failed)")
    assert Results(found(given, claims=claims(noise)), [], "").claims[0].verdict == "supported"


def test_a_claim_without_points_is_undecided(found):
    (row,) = Results(found(results()[:3], claims=claims({})), [], "").claims
    assert (row.verdict, row.difference, row.corrected_p, row.seeds) == ("undecided", None, None, 0)


def test_the_results_of_a_study_with_diverged_and_failed_points(found):
    """Every number of the JSON is one that other programs can read, and the page is made all the same."""
    given = [each for each in results() if each.cell != RAFT_3]
    given[0] = replace(given[0], curve=[{"step": 1, GOLD: math.nan, KL: math.nan}], summary={STD: math.nan})
    wishes = {
        "tables": [{"caption": "", "measures": ["gold", "at", "share"]}],
        "figures": [
            {"kind": "curves", "y": [GOLD], "caption": ""}, {"kind": "bars", "y": ["gold"], "caption": ""},
            {"kind": "axis", "y": ["at"], "x": "sigma", "caption": ""},
            {"kind": "against_kl", "y": [GOLD], "caption": ""},
        ],
    }  # fmt: skip
    failed = [("method=raft, sigma=3.0, seed=0", "policy: the loss is not finite")]
    made = Results(found(given, claims=claims({}), **wishes), failed, "rloo study small.yaml")

    def refuse(name):
        raise AssertionError(name)

    read = json.loads(made.json(), parse_constant=refuse)
    assert read["failed"] == [list(failed[0])]
    assert read["points"][0] == {"method": "rloo", "sigma": "0.0", "seed": 0, "gold": None, "at": None, "share": None}
    assert read["points"][1]["gold"] == 6.0
    assert all(math.isfinite(number) for number in made.numbers().values())
    assert (made.numbers()["points"], made.numbers()["failed"]) == (9.0, 1.0)
    page = made.page
    assert page.failed == failed
    assert [name for name in made.figures if name.startswith("0")] == [
        "01_curves",
        "02_bars",
        "03_axis",
        "04_against_kl",
    ]
    assert page.tables[0].rows[3][2:] == ["–", "–", "–"]


def test_mlflow_and_the_json_get_the_tables_as_the_page_shows_them(found):
    """Two columns of one label are both there."""
    measures = {name: {"label": "gold", "of": GOLD, "take": name} for name in ("last", "peak")}
    wishes = [
        {"caption": "Without noise", "measures": ["last", "peak"], "where": {"sigma": "0.0"}},
        {"caption": "Less RLOO", "measures": ["last"], "against": {"method": "rloo"}},
    ]
    made = Results(found(measures=measures, tables=wishes), [], "")
    rows = made.rows()
    half = f"{T_2 / math.sqrt(3):.2f}"
    assert rows["table_1"] == [
        {"method": "rloo", "gold (2)": f"6.00 ± {half}", "gold (3)": f"7.00 ± {half}"},
        {"method": "raft", "gold (2)": "5.00 ± 0.00", "gold (3)": "6.00 ± 0.00"},
    ]
    assert [list(row.values()) for row in rows["table_2"]] == made.page.tables[1].rows
    assert rows["table_2"][0]["difference"] == "−1.00"
    assert set(rows) == {"table_1", "table_2", "points"}
    read = json.loads(made.json())
    assert {name: read[name] for name in rows} == rows


def test_a_study_without_axes_has_one_row_and_its_figures(tmp_path):
    wishes = {
        "tables": [{"caption": "", "measures": ["gold"]}],
        "figures": [
            {"kind": "curves", "y": [GOLD], "caption": ""}, {"kind": "bars", "y": ["gold"], "caption": ""},
            {"kind": "against_kl", "y": [GOLD], "caption": ""},
        ],
        "claims": [ROBUST | {"says": "It learns", "contrast": [{"weight": 1, "cell": {}}]}],
    }  # fmt: skip
    measures = {"gold": {"label": "gold", "of": GOLD, "take": "last"}}
    study = small(tmp_path, axes={}, measures=measures, **wishes)
    made = Results(Values(study, [result({}, seed, [0.0, 1.0, 2.0 + seed]) for seed in range(3)]), [], "")
    assert made.page.tables[0].rows == [[f"3.00 ± {T_2 / math.sqrt(3):.2f}"]]
    assert len(made.figures) == 4
    assert made.claims[0].verdict == "supported"
    assert made.numbers()["gold/all"] == 3.0


def test_the_page_counts_what_was_corrected_for(found):
    given = [each for each in results() if each.cell != RAFT_3]
    noise = {"says": "noise costs RLOO", "contrast": [{"weight": 1, "cell": RLOO_0}, {"weight": -1, "cell": RLOO_3}]}
    facts = dict(Results(found(given, claims=claims({}, noise)), [], "").page.facts)
    assert facts["claims"] == "two-sided paired t tests, corrected for the 1 that could be tested (Holm)"
    facts = dict(Results(found(claims=claims({}, noise)), [], "").page.facts)
    assert facts["claims"] == "two-sided paired t tests, corrected for their number, 2 (Holm)"


def test_an_axis_of_names_shows_them_and_each_has_one_place(found):
    """RAFT alone at sigma = 3 keeps its place, the second."""
    wish = FigureWish(kind="axis", x="method", y=["gold"], caption="")
    values = found([each for each in results() if each.cell != RLOO_3])
    (axes,) = drawing(values, wish).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["rloo", "raft"]
    places = [[round(float(x)) for x in line.get_xdata()] for line in axes.get_lines()]
    assert [0, 1] in places  # sigma = 0
    assert [1] in places  # sigma = 3
