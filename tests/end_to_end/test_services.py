"""Scheduling for real: services, deployments, a full run, one stage, cancelling, killing, retrying, a cron schedule.

One set of services serves all tests, in order.
"""

import contextlib
import json
import os
import signal
import time
import urllib.error
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.end_to_end.services import SMALL, Machine, processes, until

SLOW_SFT, LONG_SFT = "sft.epochs=4000.0", "sft.epochs=300.0"  # minutes, and some seconds of training


@pytest.fixture(scope="module", autouse=True)
def due(here: Machine) -> str:
    """The id of a deployment that a cron schedule starts in a minute or two, once; other tests go on meanwhile."""
    deployment = here.ask("deployments/name/rloo/stage-data")["id"]
    at = datetime.now(UTC) + timedelta(minutes=2)
    cron = {"cron": f"{at.minute} {at.hour} * * *", "timezone": "UTC"}
    here.ask(
        f"deployments/{deployment}/schedules", [{"active": True, "schedule": cron, "parameters": {"dry_run": True}}]
    )
    return str(deployment)


def test_status_says_that_everything_is_up(here: Machine) -> None:
    up = until(lambda: (shown := here.rloo("services", "status")).returncode == 0 and shown.stdout, "all to be up")
    assert up.count(" up ") == 3, up


def test_a_second_up_brings_the_deployments_up_to_date_and_keeps_paused_schedules_paused(here: Machine) -> None:
    nightly = here.ask("deployments/name/rloo/nightly-tiny")
    (schedule,) = nightly["schedules"]
    own = {"active": False, "schedule": {"cron": "17 3 * * *"}, "parameters": {"dry_run": True}}
    here.ask(f"deployments/{nightly['id']}/schedules", [own])  # as somebody makes it in Prefect's pages
    assert (schedule["active"], schedule["schedule"]["cron"]) == (True, "30 2 * * *")
    here.ask(f"deployments/{nightly['id']}/schedules/{schedule['id']}", {"active": False}, "PATCH")
    again = here.rloo("services", "up", *here.ports)
    assert again.returncode == 0, again.stderr
    assert "run already" in again.stdout
    found = {each["slug"]: each for each in here.ask("deployments/name/rloo/nightly-tiny")["schedules"]}
    assert found["nightly"]["active"] is False
    assert {key: found[None][key] for key in ("active", "parameters")} == {
        key: own[key] for key in ("active", "parameters")
    }
    assert found[None]["schedule"]["cron"] == "17 3 * * *"


@pytest.mark.parametrize(
    "wrong",
    [{"experiment": "tinny"}, {"only": "sft"}, {"only": ["sgd"]}, {"from_stage": "start"}, {"overrides": ["seed"]},
     {"dry_run": "perhaps"}, {"seed": 1}],
)  # fmt: skip
def test_wrong_parameters_are_refused_before_anything_starts(here: Machine, wrong: dict[str, object]) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        here.start("full", **wrong)
    assert refused.value.code in (409, 422)


@pytest.mark.parametrize("page", ["http://elsewhere.example", "null"])
def test_another_page_in_the_browser_gets_no_answer(here: Machine, page: str) -> None:
    def allowed(origin: str) -> str | None:
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        request = urllib.request.Request(f"{here.prefect}/api/deployments/filter", headers=asked, method="OPTIONS")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.headers["access-control-allow-origin"])
        except urllib.error.HTTPError as refused:
            return refused.headers["access-control-allow-origin"]

    assert allowed(here.prefect) == here.prefect
    assert allowed(page) is None
    foreign = urllib.request.Request(here.mlflow, headers={"Host": "elsewhere.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(foreign, timeout=30)


def test_the_run_root_is_the_machine_s_and_a_failed_run_calls_the_webhook(
    here: Machine, calls: tuple[str, list[str]]
) -> None:
    run = here.start("full", overrides=["paths.root=/tmp/elsewhere"])
    assert here.wait_for(run, "FAILED", "COMPLETED")[0] == "FAILED"
    message = here.ask(f"flow_runs/{run}")["state"]["message"]
    assert "paths.root=/tmp/elsewhere: a deployment takes this from its machine" in message
    called = until(lambda: [json.loads(text) for text in calls[1] if run in text], "the webhook to be called")
    assert (called[0]["state"], called[0]["url"]) == ("Failed", f"{here.prefect}/runs/flow-run/{run}")
    assert "paths.root=/tmp/elsewhere" in called[0]["text"]


def test_a_full_run_completes_and_shows_its_stages(here: Machine, full: str) -> None:
    assert here.state(full) == ("COMPLETED", "Completed")
    assert here.stages(full) == dict.fromkeys(("data", "sft", "reward_model", "policy", "evaluation"), "Completed")
    runs = here.mlflow_runs(full)
    assert [run.info.status for run in runs] == ["FINISHED"] * 6
    artifacts = {each["key"]: each["data"] for each in here.ask("artifacts/filter", of_run(full))}
    assert f"{here.mlflow}/#/experiments/{runs[0].info.experiment_id}/runs/{runs[0].info.run_id}" in artifacts["report"]
    assert '"stage": "policy", "action": "depends"' in artifacts["plan"]


def test_one_stage_alone_is_reused(here: Machine, full: str) -> None:
    run = here.start("stage-sft", experiment="tiny", overrides=SMALL)
    here.wait_for(run, "COMPLETED", "FAILED", "CRASHED")
    assert here.stages(run) == {"data": "Reused", "sft": "Reused"}


def test_cancelling_stops_everything(here: Machine, full: str) -> None:
    run = here.start("full", experiment="tiny", overrides=[*SMALL, SLOW_SFT])
    until(lambda: here.stages(run).get("sft") == "Running", "training")
    assert processes(run)
    here.set_state(run, "CANCELLING", "Cancelling")
    asked = time.monotonic()
    here.wait_for(run, "CANCELLED")
    until(lambda: not processes(run), "the flow's processes to end", 120)
    print(f"\ncancelled, and no process left, after {time.monotonic() - asked:.1f} s")
    assert ended(lambda: {each.info.status for each in here.mlflow_runs(run)}) - {"FINISHED"} == {"KILLED"}
    print(f"MLflow said so after {time.monotonic() - asked:.1f} s")
    until(lambda: here.stages(run)["sft"] in ("Crashed", "Cancelled"), "the stage to end")


def test_a_study_is_cancelled_with_all_its_points(here: Machine, full: str) -> None:
    changes = ["experiment=tiny", *SMALL, "evaluation.prompts=8", "algorithm.steps=4000"]
    run = here.start("study-kl", "rloo-study", profile="quick", overrides=changes)
    points = min(2, len(os.sched_getaffinity(0)))  # each has a core of its own
    until(lambda: [state for name, state in here.stages(run).items() if "kl_coef" in name].count("Running") >= points,
          f"{points} points to be in training")  # fmt: skip
    until(lambda: len(processes(run)) > 1 + points, "the flow, what its points are forked from, and the points")
    here.set_state(run, "CANCELLING", "Cancelling")
    here.wait_for(run, "CANCELLED")
    until(lambda: not processes(run), "the processes of its points to end", 120)
    client = here.client()
    experiments = [each.experiment_id for each in client.search_experiments()]

    def statuses() -> set[str]:
        return {each.info.status for each in client.search_runs(experiments) if "study" in each.data.tags}

    assert "KILLED" in ended(statuses)


def test_a_study_that_is_killed_is_crashed_with_all_its_points(here: Machine, full: str) -> None:
    changes = ["experiment=tiny", *SMALL, "evaluation.prompts=8", "algorithm.steps=4000"]
    run = here.start("study-kl", "rloo-study", profile="quick", overrides=changes)
    until(lambda: "Running" in {state for name, state in here.stages(run).items() if "kl_coef" in name}, "training")
    for pid in processes(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    here.wait_for(run, "CRASHED")
    until(lambda: "Running" not in here.stages(run).values(), "its points to be marked")
    assert "Crashed" in here.stages(run).values()
    until(lambda: not processes(run), "the processes of its points to end", 120)


def test_worker_and_flow_are_killed_and_the_next_run_starts(
    here: Machine, full: str, calls: tuple[str, list[str]]
) -> None:
    run = here.start("full", experiment="tiny", overrides=[*SMALL, LONG_SFT])
    queued = here.start("full", experiment="tiny", dry_run=True)
    until(lambda: here.stages(run).get("sft") == "Running", "training")
    assert here.ask("work_pools/rloo")["concurrency_limit"] == 1
    assert here.state(queued)[0] == "SCHEDULED", "runs of one root queue"
    for pid in (worker_of(here), *processes(run)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    here.wait_for(run, "CRASHED")
    assert here.wait_for(queued, "COMPLETED")[1] == "Planned"
    print(f"\nthe next run was done {time.monotonic() - killed:.0f} s after the kill")
    called = until(lambda: [json.loads(text) for text in calls[1] if run in text], "the webhook to be called")
    assert called[0]["state"] == "Crashed"
    until(lambda: here.stages(run)["sft"] == "Crashed", "the stage to be marked")
    ended(lambda: {each.info.status for each in here.mlflow_runs(run)})
    print(f"MLflow knew {time.monotonic() - killed:.0f} s after the kill")
    here.set_state(run, "SCHEDULED", "AwaitingRetry")
    here.wait_for(run, "COMPLETED")
    parents = [each for each in here.mlflow_runs(run) if "stage" not in each.data.tags]
    assert [each.info.status for each in parents] == ["FINISHED"]


def test_a_cron_schedule_fires(here: Machine, due: str) -> None:
    planned = {"state": {"name": {"any_": ["Planned"]}}}
    wanted = {"deployments": {"id": {"any_": [due]}}, "flow_runs": planned}
    (run,) = until(lambda: here.ask("flow_runs/filter", wanted), "the schedule to fire", 600)
    assert run["auto_scheduled"]


def test_rloo_run_uses_the_running_server(here: Machine, full: str) -> None:
    done = here.rloo("run", "experiment=tiny", *SMALL)
    assert done.returncode == 0, done.stderr
    runs = here.ask("flow_runs/filter", {"flow_runs": {"deployment_id": {"is_null_": True}}})
    assert [(run["name"], run["state_name"]) for run in runs] == [("tiny", "Completed")]


def test_nothing_is_left_outside_the_run_root_and_no_secret_in_it(here: Machine, calls: tuple[str, list[str]]) -> None:
    assert sorted(path.name for path in here.root.parent.iterdir()) == ["home", "runs"]
    assert list((here.root.parent / "home").iterdir()) == []
    secret = calls[0].rpartition("/")[2].encode()
    assert [file for file in here.root.rglob("*") if file.is_file() and secret in file.read_bytes()] == []


def ended(statuses: Callable[[], set[str]]) -> set[str]:
    """Statuses in MLflow once none is RUNNING: the runs say how they end, or the services do for those that cannot."""
    until(lambda: "KILLED" in (found := statuses()) and "RUNNING" not in found, "MLflow to know the end", 180)
    return statuses()


def worker_of(here: Machine) -> int:
    """Process id of the worker of these services."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().split(b"\0")[1:5]
            home = f"PREFECT_HOME={here.root}/prefect".encode()
            if command == [b"-m", b"prefect", b"worker", b"start"] and home in (folder / "environ").read_bytes():
                return int(folder.name)
    raise AssertionError("no worker runs")


def of_run(run: str) -> dict[str, object]:
    return {"flow_runs": {"id": {"any_": [run]}}}
