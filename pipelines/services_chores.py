"""What the services' keeper has put right after runs that died, each in a process of its own. Standard library only.

A chore looks for what is left, which changes nothing, and starts its command when there is something new. What the
command could not put right is tried again after a pause that grows: whom it talks to may have been away.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from pipelines.watchdog import stop_watched

FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # seconds between two tries of the same


class Tries:
    """Remembers what has been tried, and says when a try is due."""

    def __init__(self) -> None:
        self._tried: frozenset[Path] = frozenset()
        self._pause = FIRST_PAUSE
        self._again = 0.0

    def due(self, left: Collection[Path], now: float) -> bool:
        """Whether to try now: at once what is new, and what has been tried after its pause. True counts as a try.

        Args:
            left: All that is left now.
            now: Seconds, of a clock that only goes forward.
        """
        new = not self._tried.issuperset(left)
        if not new and (not left or now < self._again):
            self._tried &= frozenset(left)
            return False
        self._pause = FIRST_PAUSE if new else min(LONGEST_PAUSE, 2 * self._pause)
        self._tried, self._again = frozenset(left), now + self._pause
        return True


class Chore:
    """A command that puts right what dead runs left.

    Args:
        command: Does it, for all that is left.
        left: Finds the files that say what is left; only reads.
        environment: In addition to the keeper's.
        place: Working directory.
    """

    def __init__(
        self, command: Sequence[str], left: Callable[[], list[Path]], environment: Mapping[str, str], place: Path
    ) -> None:
        self.command, self.left, self.environment, self.place = list(command), left, dict(environment), place
        self._tries = Tries()
        self._process: subprocess.Popen[bytes] | None = None

    def look(self, *more: str) -> int:
        """Start the command if it is due, or because of more arguments for it; never twice at a time.

        Returns:
            How many things are left, if it was started now; otherwise 0.
        """
        if self.busy:
            return 0
        left = self.left()
        if self._tries.due(left, time.monotonic()) or more:
            self.stop()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.watchdog", *self.command, *more],
                stdin=subprocess.PIPE,
                env={**os.environ, **self.environment},
                cwd=self.place,
            )
            return len(left)
        return 0

    @property
    def busy(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End its process, if it runs, and let go of it."""
        if self._process is not None:
            stop_watched(self._process)
            self._process = None
