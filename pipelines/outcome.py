"""What became of a stage, and how stages are executed: directly, or as Prefect tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """A finished stage.

    Args:
        stage: Its name.
        directory: Where its output is.
        run_id: The MLflow run that made it; "" if there is none.
        reused: Whether the output was there already.
        summary: The numbers that describe the result.
        seconds: How long it took when it was computed.
    """

    stage: str
    directory: Path
    run_id: str
    reused: bool
    summary: Mapping[str, float]
    seconds: float


Execute = Callable[[str, Callable[[], Outcome]], Outcome]


def directly(stage: str, step: Callable[[], Outcome]) -> Outcome:
    """Run a stage without Prefect."""
    return step()
