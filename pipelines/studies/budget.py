"""How many processes work side by side: what cores and memory allow."""

import os
from pathlib import Path

from pipelines.config_errors import ConfigError

SHARE = 0.8  # of the free memory, unless a person says how much
GIB = 1 << 30


def workers(threads: int, memory: float, wanted: int | None = None, budget: float | None = None) -> int:
    """Processes at a time.

    Args:
        threads: Threads of each.
        memory: GiB of each.
        wanted: What a person asked for; None: one for each `threads` cores.
        budget: GiB that all may take together; None: 80 % of what is free.

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
    return wanted or max(1, min(fitting, len(os.sched_getaffinity(0)) // threads))


def free_memory() -> float:
    """GiB that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / GIB
    raise OSError("/proc/meminfo has no MemAvailable")
