"""A real Prefect server that freezes in mid-training and is killed before the end of a stage: no state is wrong."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.end_to_end.outages import SECONDS, ended, freeze, prefect_server, rloo_run, running, said, steps
from tests.end_to_end.services import until


def test_no_state_is_wrong_after_an_outage_in_mid_training_and_one_at_a_stage_s_end(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with running(prefect_server(tmp_path / "server")) as prefect:
        api = f"{prefect.uri}/api"
        with rloo_run(tmp_path, f"paths.root={root}", PREFECT_API_URL=api) as (run, log):
            freeze(prefect, root)
            until(lambda: len(steps(root / "work" / "reward_model")) > 20, "the reward model to be under way", 600)
            prefect.kill()
            until(lambda: ended(root, "reward_model"), "the stage to end", 600)
            time.sleep(SECONDS)
            prefect.start()
            assert run.wait(600) == 0, log.read_text()
            assert not said(log, "Traceback"), log.read_text()
        until(lambda: states(api) == COMPLETED, f"Prefect's states to be right, not {states(api)}", 120)


COMPLETED = {"flow_runs": ["COMPLETED"], "task_runs": ["COMPLETED"] * 3}


def states(api: str) -> dict[str, list[str]]:
    """Of all flow runs and of all task runs."""
    return {what: sorted(str(run["state_type"]) for run in ask(f"{api}/{what}/filter")) for what in COMPLETED}


def ask(address: str) -> list[dict[str, Any]]:
    """What Prefect's server answers."""
    question = urllib.request.Request(address, b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(question, timeout=120) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found
