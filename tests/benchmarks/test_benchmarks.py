"""The command says what is missing, and its floor is the arithmetic it claims to be."""

import importlib.util
import subprocess
import sys

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks.cases import CASES, GROWTH, TINY, Case
from tests.benchmarks.ours import choice_seconds, floor_seconds


def test_a_missing_peer_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install" in command._missing(["dpo"])
    assert command._missing(["sampler_70m", "floor_70m", "choice_50k", "growth"]) is None


def test_the_floor_by_hand():
    """Two prompts of 10 and 20 tokens, two completions of five: 50 tokens, 20 through the head, four times."""
    case = Case("floor", TINY, 2, (10, 20), 2, 5)
    trunk, head = 4 * (4 * 64**2 + 2 * 64 * 256), 64 * 300
    assert floor_seconds(case, 1e9) == pytest.approx(4 * (2 * trunk * 50 + 2 * head * 20) / 1e9)


def test_a_peer_that_is_the_same_runs_once_and_a_missing_result_is_said(monkeypatch):
    asked = []

    def measure(side, name):
        asked.append((side, name))
        return {"cpu": [4.0 if side == "peer" else 2.0], "wall": [1.0], "memory": 1.0}

    monkeypatch.setattr(command, "measure", measure)
    known = {}
    rows = [command.compare(name, 1, known)[0] for name in ("step_70m", "step_70m_bf16", "step_14m")]
    assert [row["ratio"] for row in rows] == [2.0, 2.0, 2.0]
    assert [name for side, name in asked if side == "peer"] == ["step_70m", "step_14m"]
    monkeypatch.undo()
    monkeypatch.setattr(command, "LONGEST", 0.001)
    with pytest.raises(command.NoResultError, match="took more than"):
        command.measure("ours", "step_tiny")


def test_rows_without_a_peer_print_spread_and_wall_too(monkeypatch):
    measured = {"cpu": [2.0, 4.0], "wall": [5.0, 6.0], "memory": 1.5, "rates": [1e11, 2e11]}
    monkeypatch.setattr(command, "measure", lambda side, name: measured)
    (floor,) = command._rows("floor_70m", 1, {})
    low, high = floor_seconds(CASES["floor_70m"][0], 2e11) / 4, floor_seconds(CASES["floor_70m"][0], 1e11) / 2
    assert floor["ratio"] == pytest.approx((low + high) / 2)  # each step's seconds with the rate around it
    assert floor["unit"].startswith("s CPU a step, ours 2.00-4.00, wall 5.00-6.00; ratio: share of the matmul floor, ")
    assert floor["unit"].endswith(f" {low:.2f}-{high:.2f}")
    growth = {row["name"]: row for row in command._rows("growth", 1, {})}
    assert set(growth) == set(GROWTH)
    tokens = 4 * 16 * 53
    assert growth["growth_k16"]["ours"] == pytest.approx(3e3 / tokens)
    assert growth["growth_k16"]["unit"] == "ms CPU a completion token, 0.59-1.18, wall 1.47-1.77; 1.50 GB"


def test_drawing_tokens_is_compared_with_the_heads_product(monkeypatch):
    monkeypatch.setattr(command, "measure", lambda side, name: {"head": [0.010, 0.012], "plain": [0.004, 0.002]})
    (row,) = command._rows("choice_50k", 1, {})
    assert row == {"name": "choice_50k/plain", "ours": 3.0, "peer": 11.0, "ratio": pytest.approx(11 / 3),
                   "unit": "ms CPU, ours 2.00-4.00, head 10.00-12.00"}  # fmt: skip
    found = choice_seconds(Case("choice", TINY, 1, (1, 1), 2, 1, steps=3))
    assert set(found) == {"head", "plain", "top_k", "top_p", "min_p"}
    assert {len(seconds) for seconds in found.values()} == {2}


def test_every_name_of_the_table_can_be_measured():
    assert {case.kind for case, _ in CASES.values()} <= {"step", "floor", "sampler", "choice", "reward_model", "dpo"}
    assert {case.kind for case in GROWTH.values()} == {"step"}


def test_importing_the_peers_needs_no_trl():
    code = "import sys; sys.modules['trl'] = None; import tests.benchmarks.peers, tests.benchmarks.__main__"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True).returncode == 0
