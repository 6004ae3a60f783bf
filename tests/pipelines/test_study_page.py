"""A study's page, Markdown and terminal form: escaped, one file, readable by everyone, the same numbers in all."""

import re

import pytest
from rich.console import Console

from pipelines.studies.page import ClaimRow, StudyPage, Table, console, index, markdown, page, verdicts_in_words
from rloo_core.evaluation.figures.studies import Bar, ForestRow, Series, bars, curves, forest
from tests import browser

HOSTILE = '<script>alert(1)</script> | "a*b*" https://example.com/x.png'


def claim(verdict="supported", text="RAFT loses more clean reward than RLOO between σ = 0 and σ = 3", **changed):
    values = {"difference": 0.3124, "low": 0.1211, "high": 0.5037, "p": 0.0123, "corrected_p": 0.0004, "effect": 1.62}
    return ClaimRow(text, "clean reward", **(values | changed), seeds=5, margin=0.05, verdict=verdict)


def study(title="Noise", bad=""):
    claims = [
        claim(),
        claim("not supported", f"the opposite {bad}"),
        claim("undecided", **dict.fromkeys(["difference", "low", "high", "p", "corrected_p", "effect"])),
    ]
    figures = [
        ("Clean reward against σ.", curves([Series("RLOO", [0, 1], [[1.0, 2.0], [1.5, 2.5]])], "σ", "reward")),
        ("Clean reward at the end.", bars([Bar("RLOO", [1.0, 2.0]), Bar(f"RAFT {bad}", [1.0])], "reward")),
        ("Claims.", forest([ForestRow(c.text, 0.3, c.low, c.high, c.margin, c.verdict) for c in claims])),
    ]
    rows = [["RLOO"], ["σ = 0", "1.00 ± 0.10", bad or "5"], ["σ = 1", "0.90 ± 0.10", "5"]]
    return StudyPage(
        title=f"{title} {bad}".strip(),
        question=f"Does noise in the reward hurt RAFT more than RLOO? {bad}",
        facts=[("seeds", "0–4"), ("a seed varies", f"everything {bad}")],
        tables=[Table(f"Clean reward {bad}", ["point", "mean", "seeds"], rows, f"a note {bad}")],
        claims=claims,
        figures=figures,
        notes=[f"kl_coef stays at 0.05. {bad}"],
        command=f"rloo study noise --seeds 5 {bad}".strip(),
        failed=[("RAFT, σ = 5, seed 3", f"the loss is not finite {bad}")],
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    made = {"page": page(study(bad=HOSTILE)), "index": index([study(), study("Kl"), study("Kl", HOSTILE)])}
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def test_text_is_escaped(files):
    for file in files.values():
        text = file.read_text()
        assert "<script" not in text
        assert text.count("&lt;script&gt;alert(1)") >= 10


def test_names_in_the_figures_of_all_studies_do_not_clash(files):
    text = files["index"].read_text()
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names)) > 50
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(names)


def test_all_verdicts_stand_at_the_top(files):
    top = files["index"].read_text().split("<section")[1]
    assert top.count("● supported") == top.count("✕ not supported") == top.count("□ undecided") == 3
    assert re.findall(r'<tr class="part"><th[^>]*>(\w+)', top) == ["Noise", "Kl", "Kl"]


def test_words_are_set_flush_left_and_numbers_right(files):
    text = files["page"].read_text()
    for words in ('<th scope="col" class="words">verdict', '<td class="words">● supported', '<td class="words">clean'):
        assert words in text
    for numbers in ('<th scope="col">difference', "<td>+0.31<", "<td>[+0.12, +0.50]<", "<td>&lt; 0.001<", "<td>–<"):
        assert numbers in text


def test_numbers_show_two_digits_of_their_uncertainty():
    half_width_191 = claim().cells()
    assert half_width_191[1:8] == ["● supported", "+0.31", "[+0.12, +0.50]", "< 0.001", "0.012", "+1.6", "5"]
    assert claim(difference=-31.2, low=-74.0, high=12.0).cells()[2:4] == ["−31", "[−74, +12]"]
    assert claim(difference=0.00312, low=-0.001, high=0.007).cells()[2:4] == ["+0.0031", "[−0.0010, +0.0070]"]
    assert claim(difference=0.0, low=0.0, high=0.0, p=1.0).cells()[2:4] == ["0.00", "[0.00, 0.00]"]
    assert study().claims[2].cells()[2:7] == ["–"] * 5


def test_verdicts_are_counted():
    assert verdicts_in_words(study()) == "3 claims: 1 supported, 1 not supported, 1 undecided."
    assert verdicts_in_words(StudyPage("t", "q", claims=[claim()])) == "1 claim: 1 supported."
    assert verdicts_in_words(StudyPage("t", "q")) == "No claim is tested."


def test_markdown_has_the_same_tables():
    text = markdown(study())
    lines = text.splitlines()
    assert lines[0] == "### Noise"
    assert "| σ = 0 | 1.00 ± 0.10 | 5 |" in lines
    assert "| **RLOO** |  |  |" in lines
    assert any(line.startswith("| RAFT loses") and "| +0.31 | [+0.12, +0.50] | < 0.001 |" in line for line in lines)
    assert "```bash\nrloo study noise --seeds 5\n```" in text
    assert f"| --- | --- {'| ---: ' * 7}| --- |" in lines  # claim, verdict and measure are words
    tables = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in tables} == {4, 3, 11}


def test_markdown_shows_text_as_it_is():
    text = markdown(study(bad=HOSTILE))
    assert "<script" not in text.split("```")[0]
    assert r"\| " in text
    assert r"a\*b\*" in text
    assert "kl_coef" in text  # inside a word an underscore means nothing
    assert r"[x]\(http" in markdown(StudyPage("[x](http://a)", "q"))


@pytest.mark.parametrize("width", [80, 100, 180])
def test_the_terminal_shows_everything_within_100_columns(width):
    printer = Console(width=width, record=True, file=open("/dev/null", "w"), color_system=None)  # noqa: PTH123, SIM115
    printer.print(console(study(bad="[bold]markup[/bold]")))
    lines = printer.export_text().splitlines()
    assert max(map(len, lines)) <= min(width, 100)
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    for wanted in (
        "Noise [bold]markup[/bold]",
        "1.00 ± 0.10",
        "● supported",
        "+0.31",
        "seed 3: the loss is not finite",
    ):
        assert wanted in text


def test_a_study_without_results_has_a_page():
    for text in (page(StudyPage("t", "q")), index([]), index([StudyPage("t", "q")])):
        assert "<h1>" in text
    assert markdown(StudyPage("t", "q")) == "### t\n\nq\n\n**No claim is tested.**\n"


def test_nothing_is_asked_for_and_nothing_complained_about(files, tmp_path):
    assert browser.console_errors(files["index"], tmp_path) == []
    assert browser.requests_of(files["index"], tmp_path) == set()


@pytest.mark.parametrize(("name", "width", "dark"), [("page", 1280, False), ("page", 390, True), ("index", 390, False)])
def test_everyone_can_read_it(files, tmp_path, name, width, dark):
    assert browser.accessibility_problems(files[name], tmp_path, width, dark) == []
