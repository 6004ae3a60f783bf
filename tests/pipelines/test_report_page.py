"""A report is one file: escaped, without names that clash, without requests, readable by everyone."""

import re

import pytest

from pipelines.pictures import Drawing
from pipelines.report_measures import measure_table
from pipelines.report_page import Completion, Page, Picture, Sample, Section, Table, Token, number, render, table_of
from tests import browser

HOSTILE = '<script>alert(1)</script> & "quoted" https://example.com/x.png'


def page():
    values = Table("Values", ["step", "value"], [["0", "1.0"], ["part"], ["1", HOSTILE]])
    bars = Drawing("win_rates", [[{"label": HOSTILE, "value": 40.0, "low": 30.0, "high": 50.0}]])
    pictures = [Picture(title, "What it shows.", bars, values) for title in ("First curve", "Second curve")]
    tokens = [Token(" likelier", 4.0), Token(" less", -4.0), Token(f" same {HOSTILE}", 0.0)]
    sample = Sample(HOSTILE, HOSTILE, [Completion("SFT, sampled", tokens, "reward 1.00")])
    return Page(
        f"Report {HOSTILE}",
        [HOSTILE],
        [Section("Curves", [HOSTILE], [values], pictures, [values]), Section("Samples", samples=[sample])],
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(page()), encoding="utf-8")
    return path


def test_text_is_escaped(file):
    html = file.read_text()
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)") >= 8


def test_names_in_figures_do_not_clash(file):
    html = file.read_text()
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names)) > 20
    references = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', html))
    assert references
    assert references <= set(names)


def test_black_follows_the_scheme_and_values_stand_beside_the_figure(file):
    html = file.read_text()
    assert "#000000" not in html
    assert "currentColor" in html
    assert html.count("<summary>Values: ") == 2


def test_colours_say_which_way_and_strong_ones_are_underlined():
    assert Token("x", 5.0).style == "background:rgb(213 94 0 / 0.42);border-bottom:2px solid currentColor"
    assert Token("x", -5.0).style == "background:rgb(0 114 178 / 0.42);border-bottom:2px dotted currentColor"
    assert Token("x", 0.3).style == "background:rgb(213 94 0 / 0.04)"
    assert Token("x", 0.0).style == ""


def test_numbers_and_tables():
    assert [number(None), number(-1.234), number(2.0, 0)] == ["–", "−1.23", "2"]
    assert table_of("t", [{"a": 1.5, "b": None}, {"b": "x"}], 1).rows == [["1.5", "–"], ["–", "x"]]
    summary = {
        "evaluation/sft/sampled/win_rate": 0.25,
        "evaluation/policy/sampled/win_rate": 0.5,
        "evaluation/difference/sampled/win_rate": 0.25,
        "evaluation/difference/sampled/win_rate_low": 0.125,
        "evaluation/difference/sampled/win_rate_high": 0.375,
        "evaluation/policy/sampled/length": 3.0,
    }
    assert measure_table(summary).rows == [
        ["sampled"],
        ["win rate, %", "25.0", "50.0", "+25.0 [12.5, 37.5]"],
        ["length, tokens", "–", "3.0", "–"],
    ]


def test_nothing_is_asked_for_and_nothing_complained_about(file, tmp_path):
    assert browser.console_errors(file, tmp_path) == []
    assert browser.requests_of(file, tmp_path) == set()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_everyone_can_read_it(file, tmp_path, width, dark):
    assert browser.accessibility_problems(file, tmp_path, width, dark) == []
