"""What the services' keeper has put right after runs that died, and when."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.evidence import undelivered
from pipelines.processes import identity
from pipelines.service_addresses import FOLDER
from pipelines.services_chores import FIRST_PAUSE, LONGEST_PAUSE, Tries
from pipelines.services_keeper import SPEC, Keeper
from tests.pipelines.test_watchdog import wait_for

ONE, OTHER = Path("tracking/1.json"), Path("tracking/2.json")
NOTE = "import sys; open(sys.argv[1], 'a').write('tried ')"
STAY = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"


def dead() -> dict[str, str]:
    """Identity of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return {**identity(), "process.pid": str(child.pid)}


def leave(root: Path, name: str, owner: object) -> Path:
    """A run that MLflow has not got completely."""
    file = root / "tracking" / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(owner))
    return file


class TestTries:
    def test_what_is_new_is_tried_at_once_and_the_same_after_a_pause_that_grows(self) -> None:
        tries = Tries()
        assert not tries.due([], 0.0)
        assert tries.due([ONE], 1.0)
        started = [now for now in range(2, 12_000) if tries.due([ONE], float(now))]
        pauses = [later - earlier for earlier, later in zip([1, *started], started, strict=False)]
        assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
        assert (FIRST_PAUSE, LONGEST_PAUSE) == (60.0, 3600.0)

    def test_something_new_is_tried_at_once_and_makes_the_pause_short_again(self) -> None:
        tries = Tries()
        assert [tries.due([ONE], now) for now in (0.0, 60.0)] == [True, True]
        assert tries.due([ONE, OTHER], 61.0)
        assert [tries.due([ONE, OTHER], now) for now in (62.0, 120.9, 121.0)] == [False, False, True]

    def test_less_is_nothing_new(self) -> None:
        tries = Tries()
        assert tries.due([ONE, OTHER], 0.0)
        assert not tries.due([OTHER], 5.0)

    def test_what_comes_again_is_new(self) -> None:
        """A run that was sent, went on, and died once more."""
        tries = Tries()
        assert tries.due([ONE], 0.0)
        assert not tries.due([], 5.0)
        assert tries.due([ONE], 10.0)


def test_only_runs_of_dead_processes_of_this_machine_are_undelivered(tmp_path: Path) -> None:
    gone = dead()
    left = leave(tmp_path, "left", {"record": "r", **gone})
    leave(tmp_path, "living", {"record": "r", **identity()})
    leave(tmp_path, "elsewhere", {"record": "r", **gone, "process.host": "elsewhere"})
    leave(tmp_path, "unknown", {"record": "r"})
    leave(tmp_path, "odd", [1])
    (tmp_path / "tracking" / "torn.json").write_text('{"record": ')
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in (tmp_path / "tracking").iterdir()}
    assert undelivered(tmp_path) == [left]
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in (tmp_path / "tracking").iterdir()} == before
    assert undelivered(tmp_path / "nothing") == []


@pytest.fixture
def keeper(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Keeper]:
    """A keeper whose delivery is a Python program, the test's parameter, that gets the name of a file."""
    worker = {"name": "worker", "command": [], "environment": {}, "health": None}
    deliver = [sys.executable, "-c", request.param, str(tmp_path / "told")]
    commands = {"deploy": [], "repair": [sys.executable, "-c", "pass"], "deliver": deliver}
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / SPEC).write_text(json.dumps({"services": [worker], **commands, "pool": "rloo", "state": {}}))
    keeper = Keeper(tmp_path)
    yield keeper
    keeper.deliver.stop()


def look(keeper: Keeper) -> None:
    """One look, and the end of what it started."""
    keeper._look_after_the_dead()
    assert wait_for(lambda: not keeper.deliver.busy)


@pytest.mark.parametrize("keeper", [NOTE], indirect=True)
class TestDelivery:
    def test_it_is_tried_once_for_what_is_there_and_again_for_what_comes(self, keeper: Keeper, tmp_path: Path) -> None:
        gone = dead()
        look(keeper)
        assert not (tmp_path / "told").exists()
        leave(tmp_path, "1", gone)
        look(keeper)
        look(keeper)
        assert (tmp_path / "told").read_text() == "tried "
        leave(tmp_path, "2", gone)
        look(keeper)
        look(keeper)
        assert (tmp_path / "told").read_text() == "tried tried "

    def test_living_runs_are_not_touched(self, keeper: Keeper, tmp_path: Path) -> None:
        leave(tmp_path, "1", identity())
        look(keeper)
        assert not (tmp_path / "told").exists()

    def test_it_is_said(self, keeper: Keeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        leave(tmp_path, "1", dead())
        look(keeper)
        assert capsys.readouterr().out.endswith(" MLflow is sent what 1 run of dead processes left\n")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("keeper", [STAY], indirect=True)
def test_a_delivery_is_never_started_twice_at_a_time_and_ends_with_the_keeper(keeper: Keeper, tmp_path: Path) -> None:
    gone = dead()
    leave(tmp_path, "1", gone)
    keeper._look_after_the_dead()
    assert wait_for(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text() != "")
    pid = int((tmp_path / "told").read_text())
    leave(tmp_path, "2", gone)
    keeper._look_after_the_dead()
    time.sleep(1.0)
    assert int((tmp_path / "told").read_text()) == pid
    keeper.deliver.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
