"""Two processes in each stage that trains, as a person asks for them: one setting, and the numbers of one process."""

import json

import pytest

from tests.conftest import rloo

TRAINS = ["sft", "reward_model", "policy"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    run = rloo(
        tmp_path_factory.mktemp("two"),
        "run",
        "--until",
        "policy",
        "--no-prefect",
        "experiment=tiny",
        "compute.processes=2",
    )
    assert run.process.returncode == 0, run.output
    return run


def directory(run, stage):
    (found,) = (run.root / "store" / stage).iterdir()
    return found


def history(run, stage):
    return [json.loads(line) for line in (directory(run, stage) / "metrics.jsonl").read_text().splitlines()]


def test_stages_that_train_have_the_metrics_of_one_process(two, tiny_run):
    """Float32 sums in another order: close, and after a few updates no longer equal in the last digits."""
    for stage in TRAINS:
        found, expected = history(two, stage), history(tiny_run, stage)
        assert [sorted(row) for row in found] == [sorted(row) for row in expected]
        assert found != expected
        assert found[1] == pytest.approx(expected[1], rel=1e-2, abs=1e-2)


def test_only_they_ran_in_processes_of_their_own(two):
    logs = {path.parents[1].parent.name for path in two.root.glob("store/*/*/logs/processes.log")}
    assert logs == set(TRAINS)
    for stage in TRAINS:
        assert (directory(two, stage) / "model" / "model.safetensors").exists()


def test_what_they_reported_reached_mlflow(two):
    from mlflow import MlflowClient

    api = MlflowClient(f"sqlite:///{two.root}/mlflow.db", f"sqlite:///{two.root}/mlflow.db")
    experiment = next(e for e in api.search_experiments() if e.name != "Default")
    found = api.search_runs([experiment.experiment_id])
    runs = {run.data.tags.get("stage"): run for run in found}
    assert len(found) == len(runs)  # one a stage, and the parent: no process began one of its own
    steps = [metric.step for metric in api.get_metric_history(runs["policy"].info.run_id, "reward/mean")]
    assert steps == sorted(set(steps)) == [row["step"] for row in history(two, "policy") if "reward/mean" in row]
    figures = [file.path for file in api.list_artifacts(runs["policy"].info.run_id, "figures")]
    assert "figures/reward_and_kl.png" in figures
