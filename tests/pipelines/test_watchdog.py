"""Nothing that a run started outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + ".tmp", "w").write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
time.sleep(600)
"""
TOLD_TO_STOP_IN_THE_GAP = """
import os, signal, subprocess, sys
from pipelines.watchdog import watch

class Told(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        with open(sys.argv[1], "w") as pids:
            pids.write(str(self.pid))
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Told
sys.exit(watch([sys.executable, "-c", "import time; time.sleep(600)"], stdin=0))
"""
INTERRUPTIBLE = """
import signal, sys
from pipelines.watchdog import watch

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever pytest was started by
program = "import signal; raise SystemExit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
sys.exit(watch([sys.executable, "-c", program], stdin=0))
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: "object", seconds: float = 120.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def start(pids: Path, program: str = FAMILY) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pipelines.watchdog", sys.executable, "-c", program, str(pids)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def family(pids: Path) -> list[int]:
    assert wait_for(pids.exists)
    return [int(pid) for pid in pids.read_text().split()]


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
class TestFamily:
    def test_the_group_ends_when_the_pipe_closes(self, tmp_path: Path) -> None:
        watchdog = start(tmp_path / "pids")
        pids = family(tmp_path / "pids")
        watchdog.stdin.close()
        assert watchdog.wait(120) in (-signal.SIGTERM, 256 - signal.SIGTERM, 1)
        assert wait_for(lambda: not any(map(alive, pids)))

    def test_the_group_ends_when_the_watchdog_is_told_to(self, tmp_path: Path) -> None:
        watchdog = start(tmp_path / "pids")
        pids = family(tmp_path / "pids")
        watchdog.terminate()
        watchdog.wait(120)
        assert wait_for(lambda: not any(map(alive, pids)))

    def test_a_group_that_ignores_sigterm_is_killed(self, tmp_path: Path) -> None:
        watchdog = start(tmp_path / "pids", STUBBORN)
        pids = family(tmp_path / "pids")
        watchdog.stdin.close()
        watchdog.wait(120)
        assert wait_for(lambda: not any(map(alive, pids)))

    def test_the_group_ends_when_the_parent_is_killed(self, tmp_path: Path) -> None:
        """SIGKILL leaves the parent no time for anything."""
        command = [sys.executable, "-m", "pipelines.watchdog", sys.executable, "-c", FAMILY, str(tmp_path / "pids")]
        program = (
            "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); time.sleep(600)"
        )
        parent = subprocess.Popen([sys.executable, "-c", program, *command])
        pids = family(tmp_path / "pids")
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert wait_for(lambda: not any(map(alive, pids)))

    def test_being_told_to_in_the_instant_the_child_starts_leaves_nothing(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", TOLD_TO_STOP_IN_THE_GAP, str(tmp_path / "pids")]
        watchdog = subprocess.Popen(command, stdin=subprocess.PIPE)
        watchdog.wait(120)
        (child,) = family(tmp_path / "pids")
        try:
            assert wait_for(lambda: not alive(child), 10)
        finally:
            if alive(child):
                os.kill(child, signal.SIGKILL)


def test_the_command_itself_does_not_ignore_ctrl_c() -> None:
    watchdog = subprocess.Popen([sys.executable, "-c", INTERRUPTIBLE], stdin=subprocess.PIPE)
    assert watchdog.wait(120) == 0


def test_the_exit_code_is_the_command_s() -> None:
    command = [sys.executable, "-m", "pipelines.watchdog", sys.executable, "-c", "raise SystemExit(7)"]
    watchdog = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert watchdog.wait(120) == 7
