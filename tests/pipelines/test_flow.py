"""The run as a Prefect flow on a temporary server. Starting one takes ten seconds, so all tests look at one run."""

import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

PROGRAM = """
    import pytest
    from pipelines import prefect_server, runner
    from pipelines.config import load_settings
    from pipelines.plan import Selection
    from tests.pipelines.conftest import install_fake_stages
    from tests.pipelines.test_flow import show_server

    install_fake_stages(pytest.MonkeyPatch())
    overrides = ["experiment=tiny", "paths.root={root}", "tracking.experiment=trial"]
    Server = prefect_server.TemporaryServer
    stop = Server.stop
    Server.stop = lambda server: (show_server(server.url, server.root, selection.until), stop(server))
    for selection in (Selection(until="data"), Selection(until="sft")):
        code = runner.run_pipeline(load_settings(overrides), overrides, selection, use_prefect=True)
        assert code == 0, code
"""


def show_server(url: str, root: Path, last: str) -> None:
    """Ask the server, before it stops, what it has seen; the last answer stays. What comes late is waited for."""
    deadline = time.monotonic() + 60
    while not _is_complete(seen := _seen(url), last) and time.monotonic() < deadline:
        time.sleep(0.2)
    (root / "seen.json").write_text(json.dumps({**seen, "url": url}))


def _seen(url: str) -> dict[str, list[dict[str, object]]]:
    return {kind: _ask(f"{url}/{kind}/filter") for kind in ("flow_runs", "task_runs", "logs", "artifacts")}


def _is_complete(seen: dict[str, list[dict[str, object]]], last: str) -> bool:
    """Whether the server knows how everything ended, the last stage too, and what that has said."""
    states = {run["state_name"] for kind in ("flow_runs", "task_runs") for run in seen[kind]}
    ended = last in [task["name"] for task in seen["task_runs"]] and states <= {"Completed", "Reused"}
    return ended and any(f"{last} [bold]says" in str(log["message"]) for log in seen["logs"])


def _ask(url: str) -> list[dict[str, object]]:
    request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return list(json.load(answer))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, subprocess.CompletedProcess[str]]":
    """Two runs on one temporary server each: the second reuses the data stage."""
    place = tmp_path_factory.mktemp("flow")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(place / "home")}
    (place / "home").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM).replace("{root}", str(place / "runs"))]
    return place, subprocess.run(
        command, cwd=place / "home", env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def seen(done: "tuple[Path, subprocess.CompletedProcess[str]]", kind: str) -> list[dict[str, object]]:
    return list(json.loads((done[0] / "runs" / "seen.json").read_text())[kind])


def test_the_terminal_is_quiet(done: "tuple[Path, subprocess.CompletedProcess[str]]") -> None:
    assert (done[1].returncode, done[1].stderr) == (0, "")
    assert "prefect" not in done[1].stdout.lower()


def test_flow_and_tasks_carry_our_names_and_states(done: "tuple[Path, subprocess.CompletedProcess[str]]") -> None:
    flows = seen(done, "flow_runs")
    assert {(run["name"], run["state_name"]) for run in flows} == {
        ("tiny, until data", "Completed"),
        ("tiny, until sft", "Completed"),
    }
    parameters = flows[0]["parameters"]
    assert isinstance(parameters, dict)
    assert (parameters["experiment"], parameters["overrides"][-1]) == ("tiny", "tracking.experiment=trial")
    tasks = sorted((str(run["name"]), str(run["state_name"])) for run in seen(done, "task_runs"))
    assert tasks == [("data", "Completed"), ("data", "Reused"), ("sft", "Completed")]


def test_plan_and_report_are_artifacts_of_the_flow_run(done: "tuple[Path, subprocess.CompletedProcess[str]]") -> None:
    artifacts = seen(done, "artifacts")
    assert sorted((str(each["key"]), str(each["type"])) for each in artifacts) == [
        ("plan", "table"), ("plan", "table"), ("report", "markdown"), ("report", "markdown"),
    ]  # fmt: skip
    plans = [json.loads(str(each["data"])) for each in artifacts if each["key"] == "plan"]
    assert ["run", "reuse"] in [sorted((row["action"] for row in plan[:2]), reverse=True) for plan in plans]
    assert any("| data | reused |" in str(each["data"]) for each in artifacts)


def test_a_run_that_the_server_knows_the_end_of_leaves_no_record(
    done: "tuple[Path, subprocess.CompletedProcess[str]]",
) -> None:
    assert list((done[0] / "runs" / "flows").iterdir()) == []


def test_what_stages_say_is_in_prefect_s_log(done: "tuple[Path, subprocess.CompletedProcess[str]]") -> None:
    assert any("sft [bold]says[/bold]" in str(log["message"]) for log in seen(done, "logs"))


def test_nothing_is_left_outside_the_run_root(done: "tuple[Path, subprocess.CompletedProcess[str]]") -> None:
    assert list((done[0] / "home").iterdir()) == []
    assert (done[0] / "runs" / "prefect" / "prefect.db").exists()


NOISE = """
    import logging, os, pathlib, sys
    from pipelines import environment
    from pipelines.process import log_file

    root = pathlib.Path(sys.argv[1])
    environment.prepare(root)
    from pipelines import flow

    os.environ["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    with log_file(root / "log"):
        for name in ("prefect._internal.concurrency", "prefect.events", "prefect.engine", "prefect.flow_runs"):
            logging.getLogger(name).error("trouble of %s", name)
"""


def test_what_prefect_complains_about_is_in_the_log_alone(tmp_path: Path) -> None:
    """As its background services do when the server dies."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(NOISE), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    log = (tmp_path / "log").read_text()
    for name in ("prefect._internal.concurrency", "prefect.events", "prefect.engine", "prefect.flow_runs"):
        assert f"ERROR   {name}: trouble of {name}" in log


def test_the_server_is_gone(done: "tuple[Path, subprocess.CompletedProcess[str]]") -> None:
    url = json.loads((done[0] / "runs" / "seen.json").read_text())["url"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health", timeout=2)
