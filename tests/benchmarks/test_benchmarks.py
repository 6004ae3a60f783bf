"""The command says what is missing, and its floor is the arithmetic it claims to be."""

import importlib.util
import subprocess
import sys

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks.cases import CASES, GROWTH, TINY, Case
from tests.benchmarks.ours import floor_seconds


def test_a_missing_peer_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install" in command._missing(["dpo"])
    assert command._missing(["sampler_70m", "floor_70m", "growth"]) is None


def test_the_floor_by_hand():
    """Two prompts of 10 and 20 tokens, two completions of five: 50 tokens, 20 through the head, four times."""
    case = Case("floor", TINY, 2, (10, 20), 2, 5)
    trunk, head = 4 * (4 * 64**2 + 2 * 64 * 256), 64 * 300
    assert floor_seconds(case, 1e9) == pytest.approx(4 * (2 * trunk * 50 + 2 * head * 20) / 1e9)


def test_a_peer_that_is_the_same_runs_once_and_a_missing_result_is_said(monkeypatch):
    asked = []

    def measure(side, name):
        asked.append((side, name))
        return {"cpu": [4.0 if side == "peer" else 2.0], "wall": [1.0], "memory": 1.0, "rate": 1e9}

    monkeypatch.setattr(command, "measure", measure)
    known = {}
    rows = [command.compare(name, 1, known)[0] for name in ("step_70m", "step_70m_bf16", "step_14m")]
    assert [row["ratio"] for row in rows] == [2.0, 2.0, 2.0]
    assert [name for side, name in asked if side == "peer"] == ["step_70m", "step_14m"]
    monkeypatch.undo()
    monkeypatch.setattr(command, "LONGEST", 0.001)
    with pytest.raises(command.NoResultError, match="took more than"):
        command.measure("ours", "step_tiny")


def test_every_name_of_the_table_can_be_measured():
    assert {case.kind for case, _ in CASES.values()} <= {"step", "floor", "sampler", "reward_model", "dpo"}
    assert {case.kind for case in GROWTH.values()} == {"step"}


def test_importing_the_peers_needs_no_trl():
    code = "import sys; sys.modules['trl'] = None; import tests.benchmarks.peers, tests.benchmarks.__main__"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True).returncode == 0
