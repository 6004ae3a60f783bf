"""Runs a command that must not outlive its parent: `python -m pipelines.watchdog CMD…` with a pipe as standard input.

The kernel closes the parent's end of the pipe when the parent ends, however it ends (SIGKILL included). Then the
command's whole process group is told to stop, and killed if it does not. Standard library only: it starts in no time.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 3.0


def watch(command: list[str], stdin: int, grace: float = GRACE_SECONDS) -> int:
    """Run a command in its own process group until it ends, `stdin` reaches its end, or SIGTERM arrives.

    Args:
        command: The program and its arguments.
        stdin: File descriptor of the pipe held by the parent. What is written to it is thrown away.
        grace: Seconds between asking the group to stop and killing it.

    Returns:
        The command's exit code; negative signal number if it was stopped.
    """
    wake, waker = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(waker, b"."))  # before there is a child that could be left behind
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the parent; SIG_IGN would be handed on to the child
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=lambda: (child.wait(), os.write(waker, b".")), daemon=True).start()
    while True:
        ready, _, _ = select.select([stdin, wake], [], [])
        if wake in ready or not os.read(stdin, 4096):
            break
    stop_group(child, grace)
    return child.wait()


def stop_watched(watchdog: "subprocess.Popen[bytes]") -> None:
    """For the parent: end a watchdog that it started, and wait until nothing of what that runs is left."""
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait()


def stop_group(child: "subprocess.Popen[bytes]", grace: float) -> None:
    """SIGTERM to the child's process group, and SIGKILL to whatever is left after `grace` seconds."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 1.0)):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and _group_alive(child.pid):
            time.sleep(0.02)


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1:], stdin=0))
