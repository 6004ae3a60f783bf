"""Numbers read off a point's results: its summaries, and the curve of its training."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.store import Store
from pipelines.studies.definition import Cell, Measure
from rloo_core.evaluation.across_seeds import at_kl, common_kl, first_reach, peak_drop
from rloo_core.trainer import HISTORY

KL = "validation/kl"
Curve = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Result:
    """What a point left.

    Args:
        cell: Value's name of each axis.
        seed: The seed.
        summary: Of the policy stage and of the evaluation.
        curve: The policy's metrics by step, each with its `step`.
        completions: Sampled (or given) completions a step.
    """

    cell: Cell
    seed: int
    summary: Mapping[str, float]
    curve: Curve
    completions: int

    def measured(self, metric: str, over: str = "step") -> tuple[list[float], list[float]]:
        """The steps (or completions) where a metric was measured, and its values."""
        scale = self.completions if over == "completions" else 1
        rows = [row for row in self.curve if metric in row]
        return [row["step"] * scale for row in rows], [row[metric] for row in rows]

    def trajectory(self, metric: str) -> list[tuple[float, float]]:
        """KL to the reference and a metric, wherever both were measured."""
        return [(row[KL], row[metric]) for row in self.curve if metric in row and KL in row]


def read_result(store: Store, fingerprints: Mapping[str, str], cell: Cell, seed: int, completions: int) -> Result:
    """The results of a finished point.

    Raises:
        FileNotFoundError: If they are gone from the store.
    """
    summary: dict[str, float] = {}
    for stage in ("reward_model", "policy", "evaluation"):
        manifest = store.manifest(stage, fingerprints[stage]) if stage in fingerprints else None
        if manifest is not None:
            summary |= {(f"reward_model/{k}" if stage == "reward_model" else k): v for k, v in manifest.summary.items()}
    return Result(cell, seed, summary, _curve(store.path("policy", fingerprints["policy"]) / HISTORY), completions)


def value(measure: Measure, result: Result, kl: float | None = None) -> float | None:
    """The measure of a point; None where it has none.

    Args:
        measure: Which.
        result: The point's.
        kl: The common KL, for measures at matched KL.
    """
    if measure.take is None:
        found = result.summary.get(measure.of)
    elif measure.take == "at_kl":
        points = result.trajectory(measure.of)
        target = kl if measure.is_common else float(measure.kl)
        kls, values = [kl for kl, _ in points], [each for _, each in points]
        found = at_kl(kls, values, target) if points and target is not None else None
    else:
        found = _of_curve(measure, *result.measured(measure.of, measure.over))
    return None if found is None else found * measure.scale


def common(results: Sequence[Result]) -> float | None:
    """The largest KL that all of these reached while they trained."""
    kls = [[row[KL] for row in result.curve if KL in row] for result in results]
    return common_kl(kls) if kls and all(kls) else None


def _of_curve(measure: Measure, xs: Sequence[float], values: Sequence[float]) -> float | None:
    if not values:
        return None
    if measure.take == "first_reach":
        return first_reach(xs, values, measure.level)
    takes: Mapping[str, Callable[[Sequence[float]], float]] = {
        "first": lambda each: each[0],
        "last": lambda each: each[-1],
        "peak": max,
        "mean": lambda each: sum(each) / len(each),
        "drop": peak_drop,
    }
    return float(takes[str(measure.take)](values))


def _curve(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
