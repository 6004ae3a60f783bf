"""Which process a run belongs to, and whether it still lives: how runs of dead processes are found."""

import os
import socket
from pathlib import Path


def identity() -> dict[str, str]:
    """Tags that name this process on this machine for good: process ids are used again, start times are not."""
    return {
        "process.host": socket.gethostname(),
        "process.pid": str(os.getpid()),
        "process.start": start_time(os.getpid()),
    }


def is_dead(tags: dict[str, str]) -> bool:
    """Whether the process of these tags is known to have ended; never true for another machine's."""
    if tags.get("process.host") != socket.gethostname() or not tags.get("process.pid", "").isdigit():
        return False
    pid = int(tags["process.pid"])
    return not _exists(pid) or start_time(pid) != tags.get("process.start", "")


def start_time(pid: int) -> str:
    """When a process started, in clock ticks since boot, with the boot's id; "" where /proc does not say."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return f"{after_name.split()[19]}@{boot}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
