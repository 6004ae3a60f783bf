"""The GPUs of this machine for points that run side by side: left alone, all of them would compute on the first one.

Without torch, since a plan is shown before it is loaded.
"""

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")  # a folder for each of the machine's
DEVICES = Path("/dev")  # nvidia0, nvidia1, ...: those that a container has been given
VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible(driver: Path = DRIVER, devices: Path = DEVICES) -> list[str]:
    """The GPUs that CUDA may use, as `CUDA_VISIBLE_DEVICES` names them: like CUDA, up to the first wrong name."""
    of_the_machine = len(list(driver.iterdir())) if driver.is_dir() else 0
    there = [str(place) for place in range(min(of_the_machine, len(list(devices.glob("nvidia[0-9]*")))))]
    if VISIBLE not in os.environ:
        return there
    names = [name.strip() for name in os.environ[VISIBLE].split(",")]
    return list(takewhile(lambda name: name in there or name.startswith(("GPU-", "MIG-")), names))


def shares(names: Sequence[str], each: int) -> list[str]:
    """`CUDA_VISIBLE_DEVICES` of each point at a time, `each` GPUs in it; where they are too few, one point has all."""
    whole = max(1, len(names) // each)
    return [",".join(names[place * each : (place + 1) * each]) for place in range(whole)]
