"""What a person sees: the plan, a bar a stage on a terminal (sparse lines elsewhere), and the table at the end."""

import logging
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from pipelines.report import final_table

QUIET_SECONDS = 10.0  # between two lines of a stage where there is no terminal
LOG = logging.getLogger("rloo")
LOG.addHandler(logging.NullHandler())  # what is said before a log is open goes to the terminal, once


class Console:
    """Progress and messages of a run, on the terminal and in the run's log file."""

    def __init__(self, rich: RichConsole | None = None) -> None:
        self.rich = rich or RichConsole(highlight=False)
        self.errors = rich or RichConsole(highlight=False, stderr=True)

    def line(self, text: str, style: str = "") -> None:
        """Print a line as it is: nothing in it is read as markup."""
        LOG.info(text)
        self.rich.print(Text(text, style=style), soft_wrap=True)

    def warning(self, text: str) -> None:
        """Print a warning."""
        LOG.warning(text)
        self.rich.print(Text("warning: ", style="yellow").append(text, style="default"), soft_wrap=True)

    def error(self, text: str) -> None:
        """Print an error; the log has its traceback."""
        self.errors.print(Text("error: ", style="bold red").append(text, style="default"), soft_wrap=True)

    def plan(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Print what will be done: one line a stage."""
        for row in rows:
            self.line(f"{row['stage']!s:<14} {row['action']!s:<8} {row['reason']}")

    def reused(self, stage: str) -> None:
        """Say that a stage's output was there already."""
        self.line(f"{stage:<14} reused")

    @contextmanager
    def stage(self, name: str) -> Iterator["StageDisplay"]:
        """Show a stage while it runs."""
        display = Bar(self, name) if self.rich.is_terminal else Lines(self, name)
        with display:
            yield display

    def finished(
        self,
        summary: Mapping[str, float],
        seconds: Mapping[str, float],
        policy: Path | None,
        root: Path,
        default_root: Path,
    ) -> None:
        """Print the end of a run: the table, where things are, what to type next.

        Args:
            summary: The evaluation stage's summary; may be empty.
            seconds: Time of each stage; reused stages are absent.
            policy: Directory of the policy model, if there is one.
            root: The run root.
            default_root: The run root of the default config, which need not be typed.
        """
        if summary:
            self.rich.print()
            self.rich.print(final_table(summary))
        if seconds:
            total = sum(seconds.values())
            self.line(
                "time       "
                + ", ".join(f"{stage} {took:.0f} s" for stage, took in seconds.items())
                + f"; {total:.0f} s"
            )
        if policy is not None:
            self.line(f"policy     {_short(policy)}")
        self.line(f"run root   {_short(root)}")
        option = "" if root == default_root else f" paths.root={shlex.quote(_short(root))}"
        self.line(f"next       rloo ui{option}", style="bold")


class StageDisplay:
    """What a stage shows while it runs; a context manager."""

    def __init__(self, console: Console, name: str) -> None:
        self.console = console
        self.name = name
        self.started = time.monotonic()

    def __enter__(self) -> "StageDisplay":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        took = time.monotonic() - self.started
        self.console.line(f"{self.name:<14} {'done' if kind is None else 'stopped'} in {took:.1f} s")

    def progress(self, done: int, total: int, note: str = "") -> None:
        """How far the stage is."""

    def message(self, text: str) -> None:
        """One line a person should read."""
        self.console.line(f"{self.name:<14} {text}")


class Bar(StageDisplay):
    """A progress bar with step, note, elapsed and remaining time; it vanishes when the stage ends."""

    def __enter__(self) -> "StageDisplay":
        # markup is off: notes may hold text of a model
        self._bars = Progress(
            TextColumn("{task.description:<14}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console.rich,
            transient=True,
            refresh_per_second=4,
        )
        self._task: TaskID = self._bars.add_task(self.name, total=None, note="")
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._bars.stop()
        super().__exit__(kind, *details)

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=done, total=total, note=note)


class Lines(StageDisplay):
    """A line now and then, for logs: start, at most one every ten seconds, end."""

    def __enter__(self) -> "StageDisplay":
        self.console.line(f"{self.name:<14} started")
        self._last = time.monotonic()
        return self

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Print a line if the last one is old enough."""
        now = time.monotonic()
        if now - self._last >= QUIET_SECONDS:
            self._last = now
            self.console.line(f"{self.name:<14} {done}/{total} {note} ({now - self.started:.0f} s)")


def _short(path: Path) -> str:
    """A path as a person would type it: relative to here where it lies below."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
