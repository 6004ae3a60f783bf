"""A run that is stopped (SIGTERM, Ctrl-C), or that an error or a full disk ends, goes on and ends with the same bits.

SIGKILL is `test_chaos.py`'s.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.chaos.stops import STEPS, TROUBLES
from tests.conftest import REPOSITORY

STOPPED = "stopped; the same command goes on from the last checkpoint"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of the runs, by trouble."""
    command = [sys.executable, "-m", "tests.chaos.stops", str(tmp_path_factory.mktemp("stopped"))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["trouble"]: each for each in map(json.loads, done.stdout.splitlines())}


def test_every_trouble_is_tried(found: dict[str, dict[str, Any]]) -> None:
    assert tuple(found) == TROUBLES


@pytest.mark.parametrize(
    ("trouble", "code", "said", "status"),
    [
        ("SIGTERM", 143, STOPPED, "KILLED"),
        ("Ctrl-C", 130, STOPPED, "KILLED"),
        ("an error", 1, "no luck today", "FAILED"),
        ("a full disk", 1, "policy: the disk is full", "FAILED"),
    ],
)
def test_it_goes_on_and_ends_with_the_same_bits(
    found: dict[str, dict[str, Any]], trouble: str, code: int, said: str, status: str
) -> None:
    ended = found[trouble]
    assert (ended["code"], ended["status"]) == (code, status), ended
    assert said in ended["said"]
    assert ended["code of the next"] == 0, ended
    assert f"resumed from step 2 of {STEPS}" in ended["next said"]
    assert ended["anew"]
    assert ended["same bits"]
    assert ended["statuses"][0] == "FINISHED"
    assert "RUNNING" not in ended["statuses"]
    assert ended["steps"] == list(range(1, STEPS + 1))
    assert ended["left"] == []
