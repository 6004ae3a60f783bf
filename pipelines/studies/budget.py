"""How many processes work side by side: what cores and memory allow."""

import math
import os
from pathlib import Path

from pipelines.config_errors import ConfigError

SHARE = 0.8  # of the free memory, unless a person says how much
GIB = 1 << 30
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
OF_CGROUPS = (  # limit, what is taken, and of that the cache that the kernel gives back: version 2, version 1
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def workers(
    threads: int, memory: float, wanted: int | None = None, budget: float | None = None, gpus: int | None = None
) -> int:
    """Processes at a time.

    Args:
        threads: Threads of each.
        memory: GiB of each.
        wanted: What a person asked for; None: one for each `threads` cores.
        budget: GiB that all may take together; None: 80 % of what is free.
        gpus: Points that have GPUs of their own at a time; None: points compute on processors.

    Raises:
        ConfigError: If not even one fits, or more are asked for than fit.
    """
    available = budget if budget is not None else SHARE * free_memory()
    fitting = int(available / memory)
    if fitting < 1:
        raise ConfigError(
            f"a point may take {memory:.1f} GiB (`memory` of the study), but {available:.1f} GiB may be used; free "
            f"some memory, or say with --memory how much all points may take"
        )
    if wanted is not None and wanted > fitting:
        raise ConfigError(
            f"--workers {wanted}: so many points take {wanted * memory:.1f} GiB ({memory:.1f} each: `memory` of the "
            f"study), but {available:.1f} GiB may be used; set --workers to at most {fitting}, or raise --memory"
        )
    if gpus is not None and wanted is not None and wanted > gpus:
        raise ConfigError(
            f"--workers {wanted}: each point computes on GPUs of its own (`compute.processes` of them), and those of "
            f"this machine (CUDA_VISIBLE_DEVICES, if it is set) are enough for {gpus} at a time; set --workers to at "
            f"most {gpus}, or compute.device=cpu"
        )
    return wanted or max(1, min(fitting, len(os.sched_getaffinity(0)) // threads, gpus or fitting))


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> float:
    """GiB that can be had without swapping: of the machine, or of the container where that has less."""
    for line in meminfo.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024 / GIB, _left_in(cgroup))
    raise OSError(f"{meminfo} has no MemAvailable")


def _left_in(cgroup: Path) -> float:
    """GiB that a container may still take; infinite where it has no limit. Version 1 says none with a huge number."""
    for limit, taken, statistics, cache in OF_CGROUPS:
        try:
            most, used = ((cgroup / name).read_text(encoding="ascii").strip() for name in (limit, taken))
            found = dict(line.split() for line in (cgroup / statistics).read_text(encoding="ascii").splitlines())
        except OSError:
            continue
        return math.inf if most == "max" else max(0, int(most) - int(used) + int(found.get(cache, 0))) / GIB
    return math.inf
