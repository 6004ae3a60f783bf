"""Where a run is to be killed, and the trap in its process that does it."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

# Inside these, the process dies at the k-th call of a Python or C function; elsewhere after some time.
PLACES = ("checkpoint", "publish", "registration", "evaluation", "anywhere")


@dataclass(frozen=True)
class Order:
    """One SIGKILL.

    Args:
        place: One of `PLACES`.
        fraction: How far into it, 0 to 1.
        prefect: Whether the run that dies is a Prefect flow.
    """

    place: str
    fraction: float
    prefect: bool = False


@dataclass(frozen=True)
class Measured:
    """What an undisturbed run took: calls inside each place, seconds of the evaluation and of everything."""

    calls: dict[str, int]
    evaluation: float
    whole: float


def make_orders(kills: int, prefect: int, seed: int) -> list[Order]:
    """`kills` orders, spread evenly over the places, in random order; the last `prefect` of them hit a flow."""
    chance = random.Random(seed)
    orders = [Order(PLACES[i % len(PLACES)], chance.random(), prefect=i >= kills - prefect) for i in range(kills)]
    chance.shuffle(orders)
    return orders


def die() -> None:
    """The end, without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after(calls: int) -> Callable[[FrameType, str, Any], None]:
    left = calls

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_call"):
            left -= 1
            if left <= 0:
                die()

    return profile


def _later(seconds: float) -> None:
    def wait() -> None:
        time.sleep(seconds)
        die()

    threading.Thread(target=wait, daemon=True).start()


def spring(order: Order | None, measured: Measured, notes: Path) -> None:
    """Set the trap for one order in this process; `notes` gets a line when its place is entered."""
    if order is None:
        return
    if order.place == "anywhere":
        notes.write_text("entered")
        _later(order.fraction * measured.whole)
        return

    def trap() -> None:
        notes.write_text("entered")
        if order.place == "evaluation":
            _later(order.fraction * measured.evaluation)
        else:
            sys.setprofile(_die_after(1 + int(order.fraction * measured.calls[order.place])))

    _around(order.place, trap, lambda: sys.setprofile(None) if order.place != "evaluation" else None)


def count(place: str, counts: dict[str, int]) -> None:
    """Count the calls inside a place, for an undisturbed run; the fewest of its uses are noted."""

    def begin() -> None:
        seen = 0

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal seen
            seen += event in ("call", "c_call")

        begin.seen = lambda: seen  # type: ignore[attr-defined]
        sys.setprofile(profile)

    def end() -> None:
        sys.setprofile(None)
        counts[place] = min(counts.get(place, 1 << 60), begin.seen())  # type: ignore[attr-defined]

    _around(place, begin, end)


def _around(place: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Have something done before and after each use of a place."""
    owner, name = _target(place)
    original = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        before()
        try:
            return original(*args, **options)
        finally:
            after()

    setattr(owner, name, wrapped)


def _target(place: str) -> tuple[Any, str]:
    import pipelines.store
    import pipelines.tracking.run_copy
    import rloo_core.stages.evaluation
    import rloo_core.trainer

    return {
        "checkpoint": (rloo_core.trainer, "save_checkpoint"),
        "publish": (pipelines.store.Store, "publish"),
        "registration": (pipelines.tracking.run_copy, "logged_model"),
        "evaluation": (rloo_core.stages.evaluation, "run"),
    }[place]
