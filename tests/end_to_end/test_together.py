"""Several runs started at the same moment on one empty run root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rloo_core.stages import STAGES
from tests.pipelines.tracing import MICRO


def start(place: Path, *overrides: str) -> "subprocess.Popen[str]":
    """`rloo run` in the background, without Prefect, in an empty directory."""
    place.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    command = [str(Path(sys.executable).parent / "rloo"), "run", *MICRO, *overrides, "--no-prefect"]
    return subprocess.Popen(
        command, cwd=place, env={**environment, "HOME": str(place)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(*started: "subprocess.Popen[str]") -> list[str]:
    """Wait; what each has printed. All must have succeeded, without a traceback or another word on stderr."""
    ends = [each.communicate(timeout=1800) for each in started]
    for each, (printed, errors) in zip(started, ends, strict=True):
        assert each.returncode == 0, printed + errors
        assert errors == ""
        assert "Traceback" not in printed
    return [printed for printed, _ in ends]


def stage_runs(place: Path) -> dict[str, list[str]]:
    """Status of the MLflow runs of each stage."""
    uri = f"sqlite:///{place}/runs/mlflow.db"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name("rloo")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return {name: [run.info.status for run in runs if run.data.tags.get("stage") == name] for name in STAGES}


@pytest.mark.parametrize("count", [2])
def test_identical_runs_compute_each_stage_once(tmp_path: Path, count: int) -> None:
    printed = finish(*(start(tmp_path) for _ in range(count)))
    done = {name: sum(f"{name:<14} done" in text for text in printed) for name in STAGES}
    assert done == dict.fromkeys(STAGES, 1)
    assert stage_runs(tmp_path) == {name: ["FINISHED"] for name in STAGES}


def test_different_runs_all_succeed_and_share_what_they_can(tmp_path: Path) -> None:
    seeds = (0.1, 0.2, 0.3, 0.4)
    finish(*(start(tmp_path, f"algorithm.kl_coef={kl}") for kl in seeds))
    manifests = [
        json.loads(file.read_text()) for file in (tmp_path / "runs" / "store" / "policy").glob("*/manifest.json")
    ]
    assert sorted(m["parts"]["settings/algorithm.kl_coef"] for m in manifests) == list(seeds)
    assert {name: len(status) for name, status in stage_runs(tmp_path).items()} == {
        "data": 1, "sft": 1, "reward_model": 1, "policy": 4, "evaluation": 4,
    }  # fmt: skip
