"""A real MLflow server that freezes in the middle of a training and is killed at the end of one: nothing is missing.

A run that has ended waits 240 s for MLflow: the second outage and the start of a server must fit into that.
"""

import time
from pathlib import Path

from tests.end_to_end.outages import SECONDS, ended, freeze, mlflow_server, rloo_run, running, said, steps
from tests.end_to_end.services import until

STAGES = ("data", "sft", "reward_model")
AWAY, BACK = "MLflow does not answer", "MLflow answers again"


def test_nothing_is_missing_after_an_outage_in_mid_training_and_one_at_a_stage_s_end(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    where = (f"paths.root={root}", "tracking.experiment=outage")
    with (
        running(mlflow_server(tmp_path / "server")) as mlflow,
        rloo_run(tmp_path, "--no-prefect", f"tracking.uri={mlflow.uri}", *where) as (run, log),
    ):
        freeze(mlflow, root)
        until(
            lambda: len(steps(root / "work" / "reward_model")) > 20 and said(log, AWAY) == said(log, BACK),
            "the reward model to be under way",
            600 + 2 * SECONDS,
        )
        noticed = said(log, AWAY)
        mlflow.kill()
        until(lambda: ended(root, "reward_model"), "the stage to end", 600)
        until(lambda: said(log, AWAY) > noticed, "the run to notice", 600)
        time.sleep(SECONDS)
        assert run.poll() is None  # it waits for the server, to hand over the rest
        mlflow.start()
        assert run.wait(600) == 0, log.read_text()
        assert said(log, BACK) > noticed
        assert not said(log, "Traceback")
        assert not said(log, "View run")
        everything_is_there(root, mlflow.uri)


def everything_is_there(root: Path, uri: str) -> None:
    """Every step of every metric once, ends, links, models, files; nothing is left to send."""
    from mlflow import MlflowClient

    api = MlflowClient(uri, uri)
    experiment = api.get_experiment_by_name("outage")
    runs = {run.data.tags.get("stage"): run for run in api.search_runs([experiment.experiment_id])}
    assert len(api.search_runs([experiment.experiment_id])) == len(runs) == 1 + len(STAGES)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {runs[stage].data.tags["mlflow.parentRunId"] for stage in STAGES} == {runs[None].info.run_id}
    for stage in STAGES[1:]:
        recorded = steps(root / "store" / stage)
        for name in {name for row in recorded for name in row if name != "step"}:
            found = [(point.step, point.value) for point in api.get_metric_history(runs[stage].info.run_id, name)]
            assert sorted(found) == [(row["step"], row[name]) for row in recorded if name in row], (stage, name)
        assert runs[stage].inputs.dataset_inputs
        files = {file.path for file in api.list_artifacts(runs[stage].info.run_id)}
        assert "settings.json" in files
        (version,) = api.search_model_versions(f"name = 'outage-{stage.replace('_', '-')}'")
        assert version.run_id == runs[stage].info.run_id
    assert list((root / "tracking").iterdir()) == []
