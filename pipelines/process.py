"""The process a run lives in: its log file, and SIGTERM as an exception."""

import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class Terminated(BaseException):
    """SIGTERM arrived. No `Exception`, so that nothing swallows it on the way up."""


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Within this block SIGTERM raises `Terminated` once; more of them do not disturb the cleaning up."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, handle)
    except ValueError:  # not the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class LogFile(logging.FileHandler):
    """A log that is lost, not fatal, where it cannot be written (a full disk)."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or drop it."""
        with contextlib.suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        """Close the file, whether or not its last line can be written."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[logging.Handler]:
    """Everything that is logged within this block goes to a file, Python's warnings included.

    What cannot be logged is dropped in silence: neither logging nor Prefect's log sender writes to the terminal.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = LogFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter(FORMAT))
    own = logging.getLogger("rloo")
    own.setLevel(logging.INFO)
    own.propagate = False  # the terminal has its own lines
    targets = [own, logging.getLogger()]
    for logger in targets:
        logger.addHandler(handler)
    logging.captureWarnings(True)
    complaints, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield handler
    finally:
        logging.raiseExceptions = complaints
        logging.captureWarnings(False)
        for logger in targets:
            logger.removeHandler(handler)
        handler.close()
