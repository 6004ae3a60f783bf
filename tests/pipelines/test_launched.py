"""Stages in several processes: what they report, and how they end."""

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from pipelines import launched
from pipelines.launched import ProcessFailed, run_stage, trains
from rloo_core.stages import STAGES, launch
from tests.rloo_core.stages.small import sft_settings

STAGE = replace(STAGES["sft"], module="tests.pipelines.launched_stage")


class Recorder:
    """An observer that remembers."""

    def __init__(self):
        self.seen = []
        self.figures = []

    def metrics(self, step, values):
        self.seen.append(("metrics", step, dict(values)))

    def table(self, name, rows):
        self.seen.append(("table", name, list(rows)))

    def figure(self, name, figure):
        self.figures.append((name, figure))

    def progress(self, done, total, note=""):
        self.seen.append(("progress", done, total, note))

    def message(self, text):
        self.seen.append(("message", text))


def settings_of(place, processes=2):
    settings = sft_settings(place)
    return settings.model_copy(update={"compute": settings.compute.model_copy(update={"processes": processes})})


def run(place, trouble=None, processes=2, observer=None):
    inputs = {} if trouble is None else {"trouble": place / trouble}
    return run_stage(STAGE, settings_of(place, processes), inputs, place, observer or Recorder())


def survivors(place):
    """Processes of the stage that are still there some time later."""
    pids, deadline = written(place), time.monotonic() + 60
    assert pids
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def written(place):
    """The process ids that the stage has written down so far."""
    return [int(text) for path in place.glob("pid-*") if (text := path.read_text())]


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_first_process_reports_and_the_others_are_silent(tmp_path):
    observer = Recorder()
    assert run(tmp_path, observer=observer) == {"epochs": 1.0, "rank": 0.0}
    assert observer.seen == [
        ("metrics", 1, {"loss/mean": 1.0}), ("progress", 1, 2, "half [way]"),
        ("metrics", 2, {"loss/mean": 2.0}), ("progress", 2, 2, "half [way]"),
        ("message", "there are 2"), ("table", "samples", [{"prompt": "å", "completion": 0}]),
    ]  # fmt: skip
    ((name, figure),) = observer.figures
    assert name == "curve"
    pixels = figure.axes[0].images[0].get_array()
    assert pixels.std() > 0  # something is drawn
    assert "printed by a process" in (tmp_path / "logs" / "processes.log").read_text()
    assert len({path.read_text() for path in tmp_path.glob("pid-*")}) == 2
    assert not survivors(tmp_path)


def test_one_process_is_this_one(tmp_path):
    observer = Recorder()
    assert run(tmp_path, processes=1, observer=observer)["rank"] == 0
    assert (tmp_path / "pid-0").read_text() == str(os.getpid())
    assert observer.figures[0][1].axes[0].lines  # the figure itself


def test_only_stages_that_train_are_shared():
    assert [name for name, stage in STAGES.items() if trains(stage)] == ["sft", "reward_model", "policy"]


def test_an_error_in_any_process_is_the_error_of_the_stage(tmp_path):
    with pytest.raises(ValueError, match=r"^the second process found a wrong value; set it right") as caught:
        run(tmp_path, "value error in 1")
    assert "launched_stage.py" in caught.value.__notes__[0]  # where it was raised
    assert not survivors(tmp_path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SystemExit(7), SystemExit("7")),
        (KeyError("row"), ProcessFailed("KeyError: 'row'")),
        (OSError(errno.ENOSPC, "no space"), OSError(errno.ENOSPC, "[Errno 28] no space")),
        (ModuleNotFoundError("no module"), ImportError("no module")),
    ],
)
def test_the_first_error_is_raised_as_what_it_was(tmp_path, error, expected):
    launch._report(error, tmp_path, 1)
    launch._report(RuntimeError("connection closed by peer"), tmp_path, 0)  # for want of the other
    found = launched._error(tmp_path, 1, tmp_path)
    assert type(found) is type(expected)
    assert found.args == expected.args
    assert getattr(found, "errno", None) == getattr(expected, "errno", None)


def test_a_process_that_is_killed_ends_the_stage(tmp_path):
    with pytest.raises(ProcessFailed, match=r"without saying why.*processes\.log"):
        run(tmp_path, "killed")
    assert not survivors(tmp_path)


RUNNER = """
import sys
from pathlib import Path
from pipelines.process import Terminated, sigterm_raises
from tests.pipelines.test_launched import run
try:
    with sigterm_raises():
        run(Path(sys.argv[1]), "waits")
except Terminated:
    sys.exit(9)
"""


@pytest.mark.parametrize(("number", "code"), [("SIGTERM", 9), ("SIGKILL", -9)])
def test_no_process_survives_the_one_that_started_it(tmp_path, number, code):
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path)], stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(written(tmp_path)) < 2 and time.monotonic() < deadline and runner.poll() is None:
        time.sleep(0.1)
    runner.send_signal(getattr(signal, number))
    assert runner.wait(180) == code
    assert not survivors(tmp_path)
