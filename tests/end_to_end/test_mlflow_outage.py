"""A real MLflow server that freezes in the middle of a training and is killed at the end of one: nothing is missing.

A run that has ended waits 240 s for MLflow: the second outage and the start of a server must fit into that.
"""

import time
from pathlib import Path

from tests.end_to_end.outages import (
    EXPERIMENT,
    SECONDS,
    ended,
    everything_is_in_mlflow,
    freeze,
    mlflow_server,
    rloo_run,
    running,
    said,
    steps,
)
from tests.end_to_end.services import until

AWAY, BACK = "MLflow does not answer", "MLflow answers again"


def test_nothing_is_missing_after_an_outage_in_mid_training_and_one_at_a_stage_s_end(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    where = (f"paths.root={root}", EXPERIMENT)
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
        everything_is_in_mlflow(root, mlflow.uri)
