"""A picture is drawn once for its values and its code, then read."""

import pytest

from pipelines import pictures
from pipelines.pictures import Drawing, svg
from rloo_core.evaluation.figures import win_rates


def bars(value=40.0, label="policy"):
    return Drawing("win_rates", [[{"label": label, "value": value, "low": value - 10, "high": value + 10}]])


@pytest.fixture
def drawn(monkeypatch):
    """How often something was drawn."""
    calls = []

    def counted(rows):
        calls.append(rows)
        return win_rates(rows)

    monkeypatch.setattr("rloo_core.evaluation.figures.win_rates", counted)
    return calls


def test_the_same_values_are_drawn_once(tmp_path, drawn):
    first = svg(bars(), "Rates", tmp_path / "kept")
    assert svg(bars(), "Rates", tmp_path / "kept") == first == svg(bars(), "Rates")
    assert len(drawn) == 2  # once for the directory, once without one
    assert first.startswith("<svg")
    assert 'id="rates-' in first


@pytest.mark.parametrize("other", [bars(41.0), bars(label="SFT")])
def test_other_values_are_drawn(tmp_path, drawn, other):
    first = svg(bars(), "Rates", tmp_path)
    assert svg(other, "Rates", tmp_path) != first
    assert len(drawn) == 2


def test_another_title_gives_other_names_to_the_same_picture(tmp_path, drawn):
    first, second = svg(bars(), "Rates", tmp_path), svg(bars(), "All rates", tmp_path)
    assert second == first.replace('id="rates-', 'id="all-rates-').replace("#rates-", "#all-rates-") != first
    assert len(drawn) == 1


def test_other_code_draws_again(tmp_path, drawn, monkeypatch):
    svg(bars(), "Rates", tmp_path)
    monkeypatch.setattr(pictures, "_code", lambda: ["other code"])
    svg(bars(), "Rates", tmp_path)
    assert len(drawn) == 2


def test_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "KEPT", 3)
    for value in range(20, 25):
        svg(bars(float(value)), "Rates", tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr(Drawing, "figure", None)  # nothing can be drawn any more
    assert ">policy<" in svg(bars(24.0), "Rates", tmp_path)
