"""A command that was started and is not waited for, and what it has started: processes, and sockets that listen."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", f"{'0' * 24}01000000")  # in /proc/net: 127.0.0.1, ::1


def start(place: Path, *arguments: str) -> "tuple[subprocess.Popen[bytes], Path]":
    """Start the command; the process, and the file of what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    command = [str(Path(sys.executable).parent / "rloo"), *arguments]
    told = place / "told.txt"
    with told.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=place / "cwd", env={**environment, "HOME": str(place / "home")}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return process, told


def living(root: Path) -> list[int]:
    """Processes that were started in a run root's directory and still live."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == root.parent:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def points(root: Path) -> list[int]:
    """Processes that make points: those that the process with the loaded libraries has forked."""
    return [process for process in living(root) if b"multiprocessing.forkserver" in command_of(parent_of(process))]


def parent_of(process: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command_of(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def descriptors_of(process: int) -> set[str]:
    """What a process has open, as the kernel names it; nothing of one that has ended meanwhile."""
    found = set()
    with suppress(OSError):
        for descriptor in list(Path(f"/proc/{process}/fd").iterdir()):
            with suppress(OSError):
                found.add(str(descriptor.readlink()))
    return found


def open_to_others(root: Path) -> set[str]:
    """Addresses beyond loopback that processes of a run root listen on, as the kernel writes them."""
    sockets = {socket for process in living(root) for socket in descriptors_of(process)}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    listening = {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}
    return {address for address in listening if not address.startswith(LOOPBACK)}
