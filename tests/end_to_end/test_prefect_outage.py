"""A real Prefect server that freezes in mid-training and is killed before the end of a stage.

Afterwards no state is wrong in Prefect, and in MLflow nothing is missing.
"""

import json
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.end_to_end.outages import (
    EXPERIMENT,
    SECONDS,
    STAGES,
    ended,
    everything_is_in_mlflow,
    freeze,
    prefect_server,
    rloo_run,
    running,
    said,
    steps,
)
from tests.end_to_end.services import until


def test_no_state_is_wrong_after_an_outage_in_mid_training_and_one_at_a_stage_s_end(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with running(prefect_server(tmp_path / "server")) as prefect:
        api = f"{prefect.uri}/api"
        with rloo_run(tmp_path, f"paths.root={root}", EXPERIMENT, PREFECT_API_URL=api) as (run, log):
            freeze(prefect, root)
            until(lambda: len(steps(root / "work" / "reward_model")) > 20, "the reward model to be under way", 600)
            prefect.kill()
            until(lambda: ended(root, "reward_model"), "the stage to end", 600)
            time.sleep(SECONDS)
            prefect.start()
            assert run.wait(600) == 0, log.read_text()
            assert not said(log, "Traceback"), log.read_text()
        until(lambda: states(api) == COMPLETED, f"Prefect's states to be right, not {states(api)}", 120)
        every_task_is_its_stage_s(root, api)
    everything_is_in_mlflow(root, f"sqlite:///{root}/mlflow.db")


COMPLETED = {"flow_runs": ["COMPLETED"], "task_runs": ["COMPLETED"] * 3}


def states(api: str) -> dict[str, list[str]]:
    """Of all flow runs and of all task runs."""
    return {what: sorted(str(run["state_type"]) for run in ask(f"{api}/{what}/filter")) for what in COMPLETED}


def every_task_is_its_stage_s(root: Path, api: str) -> None:
    """One task run a stage, in the one flow run, with the state of a stage that ran; its output was made meanwhile."""
    (flow,) = ask(f"{api}/flow_runs/filter")
    tasks = ask(f"{api}/task_runs/filter")
    assert sorted(task["name"] for task in tasks) == sorted(STAGES)
    for task in tasks:
        assert (task["state_name"], task["flow_run_id"]) == ("Completed", flow["id"]), task
        (manifest,) = (root / "store" / task["name"]).glob("*/manifest.json")
        made = datetime.fromisoformat(json.loads(manifest.read_text())["created"])
        began, done = (datetime.fromisoformat(task[when]) for when in ("start_time", "end_time"))
        assert began <= made <= done, (task["name"], began, made, done)


def ask(address: str) -> list[dict[str, Any]]:
    """What Prefect's server answers."""
    question = urllib.request.Request(address, b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(question, timeout=120) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found
