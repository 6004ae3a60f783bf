"""Time of a step and memory of a process."""

import resource
import time
from collections.abc import Mapping
from statistics import median

import torch

from rloo_core.observer import SilentObserver


class Meter(SilentObserver):
    """Processor and wall time of each step; told the end of one, it starts with the next."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.start()

    def start(self) -> None:
        self._from = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        self.cpu.append(time.process_time() - self._from[0])
        self.wall.append(time.perf_counter() - self._from[1])
        self.start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.stop()

    def report(self) -> dict[str, object]:
        """Seconds a step without the first, and the largest resident memory so far, GB."""
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return {"cpu": self.cpu[1:], "wall": self.wall[1:], "memory": memory}


def matmul_rate(rows: int = 1616, inner: int = 512, columns: int = 2048) -> float:
    """Floating-point operations a second of a float32 matrix product of the update's shape, as most of many went."""
    left, right, seconds = torch.randn(rows, inner), torch.randn(inner, columns), []
    for _ in range(60):
        started = time.process_time()
        torch.mm(left, right)
        seconds.append(time.process_time() - started)
    return 2 * rows * inner * columns / median(seconds)
