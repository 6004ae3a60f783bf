"""How far a study is: what is done, reused and failed, and how long the rest will take."""

import time
from dataclasses import dataclass, field
from threading import Lock

from pipelines.studies.point import Returned


@dataclass
class Progress:
    """Counts of a study's points. What they share is made before and told by itself.

    Args:
        total: Points.
        workers: How many processes work at a time.
        sharing: What several points share and is being made now, e.g. "sft: 3 of 8"; empty afterwards.
    """

    total: int
    workers: int
    done: int = 0
    reused: int = 0
    failed: int = 0
    sharing: str = ""
    seconds: list[float] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def note(self, returned: Returned) -> None:
        """A point has come back."""
        with self._lock:
            if returned.error:
                self.failed += 1
            elif returned.computed:
                self.done += 1
                self.seconds.append(returned.seconds)
            else:
                self.reused += 1

    @property
    def finished(self) -> int:
        """Points that nothing is left to do for."""
        return self.done + self.reused + self.failed

    @property
    def seconds_left(self) -> float | None:
        """Mean time of the computed points x what is left / workers; None before the first one."""
        if not self.seconds:
            return None
        return sum(self.seconds) / len(self.seconds) * (self.total - self.finished) / self.workers

    @property
    def percent(self) -> float:
        """Share of the points that nothing is left to do for."""
        return 100.0 * self.finished / max(self.total, 1)

    def __str__(self) -> str:
        if self.sharing:
            return f"shared {self.sharing}; then {self.total} points"
        counts = f"{self.finished}/{self.total}: {self.done} done, {self.reused} reused, {self.failed} failed"
        left = self.seconds_left
        return counts if left is None or self.finished == self.total else f"{counts}; about {in_words(left)} left"


def in_words(seconds: float) -> str:
    """A length of time: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
