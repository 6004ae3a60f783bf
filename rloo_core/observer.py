"""How the core is watched: by MLflow, a terminal, a test, or nobody."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, object]


class Observer(Protocol):
    """Receives what a stage reports. No call may change what the stage computes."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Values of one step, by metric name (`noun/statistic`)."""

    def table(self, name: str, rows: Sequence[Row]) -> None:
        """A table, complete: a second call with the same name replaces the first."""

    def figure(self, name: str, figure: "Figure") -> None:
        """A finished figure; the caller closes it."""

    def progress(self, done: int, total: int, note: str = "") -> None:
        """How far the stage is, in steps, with the few words worth seeing meanwhile."""

    def message(self, text: str) -> None:
        """One line a person should read (a warning, a count of dropped rows)."""


class SilentObserver:
    """An observer that looks away."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def table(self, name: str, rows: Sequence[Row]) -> None: ...

    def figure(self, name: str, figure: "Figure") -> None: ...

    def progress(self, done: int, total: int, note: str = "") -> None: ...

    def message(self, text: str) -> None: ...
