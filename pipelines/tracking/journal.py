"""Every metric of a stage as JSON lines next to the stage's work, so that no outage and no crash loses a number."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Line:
    """What one step reported, and when (milliseconds since 1970)."""

    step: int
    values: dict[str, float]
    time: int


class Journal:
    """Append-only `metrics.jsonl`: `{"step": 3, "values": {"loss": 0.5}, "time": 1795975272440}`.

    A stage that was killed and goes on from a checkpoint repeats some steps: the later line for a step wins.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, line: Line) -> None:
        """Append a line; it is in the operating system's hands when this returns."""
        values = {key: value if math.isfinite(value) else str(value) for key, value in line.values.items()}
        self._file.write(json.dumps({"step": line.step, "values": values, "time": line.time}) + "\n")

    def close(self) -> None:
        """Close the file. A line that could not be written (a full disk) has been told by `write`."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_journal(path: Path) -> list[Line]:
    """The journal's content, one line a (step, metric) at most, in order of step.

    Args:
        path: A `metrics.jsonl`; a missing file is an empty journal. A torn line (a crash while writing) is skipped.

    Returns:
        Lines sorted by step; where a step was repeated, the later values.
    """
    steps: dict[int, Line] = {}
    for line in _parsed(path):
        earlier = steps.get(line.step)
        steps[line.step] = Line(line.step, {**(earlier.values if earlier else {}), **line.values}, line.time)
    return [steps[step] for step in sorted(steps)]


def _parsed(path: Path) -> Iterator[Line]:
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record: Mapping[str, dict[str, float | str]] = json.loads(text)
            values = {key: float(value) for key, value in record["values"].items()}
            yield Line(int(record["step"]), values, int(record["time"]))  # type: ignore[call-overload]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def _end_last_line(path: Path) -> None:
    """A torn last line gets its line end, so that the next line stands alone."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
