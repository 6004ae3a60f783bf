"""Processes of a study: what they bring back, how they end, and that none is left."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import pytest

from pipelines.studies import pool as pools
from pipelines.studies.point import Returned
from pipelines.studies.pool import Pool, Stopped
from tests.pipelines.studies.errands import HERE, do, errand

PATIENCE = 180.0  # seconds; a process needs a fraction of one
CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def pool():
    with Pool(do, [HERE]) as made:
        yield made


def until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def is_there(number):
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def waiting(folder, names):
    """The process numbers of errands that wait, once they have written them."""
    files = [folder / name for name in names]
    until(lambda: all(file.exists() and file.read_text() for file in files), "the processes never came")
    return [int(file.read_text()) for file in files]


def test_a_result_comes_back_whole(pool):
    assert pool.run(errand("a", "return")) == Returned("a", {"policy": "abc"}, ("policy",), 1.5, 0.5)


def test_each_process_has_gpus_of_its_own_while_it_runs():
    with Pool(do, [HERE], gpus=["0,1", "GPU-7"]) as pool, ThreadPoolExecutor(4) as threads:
        made = [found.fingerprints for found in threads.map(pool.run, [errand(str(p), "gpus") for p in range(6)])]
        assert {each["gpus"] for each in made} == {"0,1", "GPU-7"}
        for one, other in combinations(made, 2):
            apart = float(one["to"]) <= float(other["from"]) or float(other["to"]) <= float(one["from"])
            assert apart or one["gpus"] != other["gpus"]
        both = [threads.submit(pool.run, errand(name, "die")) for name in "ab"]  # what they had is free again
        assert all("SIGKILL" in future.result(PATIENCE).error for future in both)
        assert {pool.run(errand("c", "gpus")).fingerprints["gpus"] for _ in range(2)} == {"0,1", "GPU-7"}


def test_without_gpus_the_variable_is_left_alone(pool, monkeypatch):
    assert pool.run(errand("a", "gpus")).fingerprints["gpus"] == os.environ.get("CUDA_VISIBLE_DEVICES", "")


def test_an_error_is_told_in_its_words(pool):
    assert pool.run(errand("a", "raise")).error == "ValueError: no such thing"


def test_a_process_that_is_killed_is_an_error_of_its_errand(pool):
    found = pool.run(errand("a", "die"))
    assert found.error.startswith("its process was ended by SIGKILL; the system kills what takes too much memory")
    assert pool.run(errand("b", "leave")).error == "its process ended with exit code 7 and without a word"
    assert not pool.run(errand("c", "return")).error  # and the next one is not disturbed


@pytest.mark.parametrize("kind", ["wait", "stubborn"])
def test_a_stopped_pool_ends_its_processes(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(pools, "GRACE_SECONDS", 0.5)
    with Pool(do, [HERE]) as pool, ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(pool.run, errand(name, kind, tmp_path)) for name in ("a", "b")]
        numbers = waiting(tmp_path, ["a", "b"])
        pool.stop()
        for future in futures:
            with pytest.raises(Stopped):
                future.result(PATIENCE)
        until(lambda: not any(map(is_there, numbers)), "a process is left")
        with pytest.raises(Stopped):
            pool.run(errand("c", "return"))


def test_no_process_outlives_a_parent_that_is_killed(tmp_path):
    parent, numbers = subprocess.Popen([sys.executable, "-m", HERE, str(tmp_path)], cwd=CHECKOUT), []
    try:
        numbers = waiting(tmp_path, ["a", "b"])
        assert all(map(is_there, numbers))
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: not any(map(is_there, numbers)), "a process outlives its parent")
    finally:
        parent.kill()
        parent.wait()
        for number in filter(is_there, numbers):
            os.kill(number, signal.SIGKILL)
