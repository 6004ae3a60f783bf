"""The GPUs of this machine for points that run side by side: left alone, all of them would compute on the first one.

Without torch, since a plan is shown before it is loaded.
"""

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")  # a folder for each
VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(driver: Path = DRIVER) -> list[str]:
    """The GPUs that CUDA may use, as `CUDA_VISIBLE_DEVICES` names them: like CUDA, up to the first wrong name."""
    there = [str(place) for place, _ in enumerate(driver.iterdir())] if driver.is_dir() else []
    if VISIBLE not in os.environ:
        return there
    names = [name.strip() for name in os.environ[VISIBLE].split(",")]
    return list(takewhile(lambda name: name in there or name.startswith(("GPU-", "MIG-")), names))


def shares(names: Sequence[str], each: int) -> list[str]:
    """`CUDA_VISIBLE_DEVICES` of each point at a time, `each` GPUs in it; where they are too few, one point has all."""
    whole = max(1, len(names) // each)
    return [",".join(names[place * each : (place + 1) * each]) for place in range(whole)]
