"""Numbers read off a point's results: its summaries, and the curve of its training."""

import json
import math
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
        """The steps (or completions) where a metric was measured, and its values; none if it ever was no number."""
        scale = self.completions if over == "completions" else 1
        rows = self._rows(metric)
        return [row["step"] * scale for row in rows], [row[metric] for row in rows]

    def trajectory(self, metric: str) -> list[tuple[float, float]]:
        """KL to the reference and a metric, wherever both were measured; empty if one of them ever was no number."""
        return [(row[KL], row[metric]) for row in self._rows(metric, KL)]

    def _rows(self, *metrics: str) -> Curve:
        """Where all of these were measured. A training that diverged has no curve: a part of it would mislead."""
        rows = [row for row in self.curve if all(metric in row for metric in metrics)]
        return rows if all(math.isfinite(row[metric]) for row in rows for metric in metrics) else []


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


def value(measure: Measure, result: Result, kl: float | None = None, divided: float | None = None) -> float | None:
    """The measure of a point; None where it has none, or none that is finite.

    Args:
        measure: Which.
        result: The point's.
        kl: The common KL, for measures at matched KL.
        divided: The axis' number, for measures that are a share of it.
    """
    found = _read(measure, result, kl)
    if found is not None and divided is not None:
        found = divided / found if found else None
    return found * measure.scale if found is not None and math.isfinite(found) else None


def _read(measure: Measure, result: Result, kl: float | None) -> float | None:
    if measure.take is None:
        return result.summary.get(measure.of)
    if measure.take == "at_kl":
        points = result.trajectory(measure.of)
        target = kl if measure.is_common else float(measure.kl)
        return at_kl([x for x, _ in points], [y for _, y in points], target) if points and target is not None else None
    return _of_curve(measure, *result.measured(measure.of, measure.over))


def common(results: Sequence[Result]) -> float | None:
    """The largest KL that all of these reached while they trained."""
    kls = [result.measured(KL)[1] for result in results]
    return common_kl(kls) if kls and all(kls) else None


def _of_curve(measure: Measure, xs: Sequence[float], values: Sequence[float]) -> float | None:
    if not values:
        return None
    if measure.take == "first_reach":
        assert measure.level is not None, "a measure without it is refused"
        return first_reach(xs, values, measure.level)
    takes: Mapping[str, Callable[[Sequence[float]], float]] = {
        "first": lambda each: each[0],
        "last": lambda each: each[-1],
        "peak": max,
        "mean": lambda each: sum(each) / len(each),
        "drop": peak_drop,
        "rise": lambda each: each[-1] - each[0],
    }
    return float(takes[str(measure.take)](values))


def _curve(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
