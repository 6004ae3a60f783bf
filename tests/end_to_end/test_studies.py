"""Studies as a person starts them: two points, two seeds, on the tiny experiment; interrupted, added to, on Dask."""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.conftest import Run, rloo
from tests.end_to_end.services import SMALL, until

STUDY = {
    "title": "Two KL coefficients",
    "question": "Does the command do what it says?",
    "base": ["experiment=tiny", *SMALL, "algorithm.steps=3", "algorithm.checkpoint_every=1"],
    "axes": {"kl_coef": {"label": "kl_coef", "setting": "algorithm.kl_coef", "values": [0.1, 1.0]}},
    "seeds": {"count": 2, "vary": "policy"},
    "until": "policy",
    "measures": {
        "proxy": {"label": "proxy reward", "of": "validation/proxy_reward", "take": "last"},
        "kl": {"label": "KL, nats", "of": "validation/kl", "take": "last"},
    },
    "tables": [{"caption": "At the end", "measures": ["proxy", "kl"]}],
    "figures": [{"kind": "axis", "x": "kl_coef", "y": ["proxy"], "caption": "Proxy reward."}],
    "claims": [
        {
            "says": "A weaker KL term lets the policy go further",
            "measure": "kl",
            "contrast": [{"weight": 1, "cell": {"kl_coef": 0.1}}, {"weight": -1, "cell": {"kl_coef": 1.0}}],
            "margin": 0.01,
        }
    ],
}


def study_file(place: Path, name: str = "two", **changes: object) -> str:
    (place / "cwd").mkdir(parents=True, exist_ok=True)
    (place / "cwd" / f"{name}.yaml").write_text(yaml.safe_dump(STUDY | changes))
    return f"{name}.yaml"


def made(root: Path, stage: str) -> list[str]:
    return sorted(path.name for path in (root / "store" / stage).iterdir()) if (root / "store" / stage).exists() else []


def file_of(root: Path, name: str, study: str = "two") -> Path:
    """One of the files that a study keeps with its record."""
    (path,) = (root / "records").glob(f"study-{study}.yaml-laptop/files/{name}")
    return path


def results(root: Path, study: str = "two") -> dict:
    return json.loads(file_of(root, "results.json", study).read_text())


def executed(root: Path) -> int:
    """Stages that were computed in all runs of this root."""
    states = [json.loads(path.read_text()) for path in (root / "records").glob("*/run.json")]
    return sum(note["action"] == "run" for state in states for note in state["notes"])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The study, with Prefect's temporary server."""
    place = tmp_path_factory.mktemp("study")
    run = rloo(place, "study", study_file(place))
    assert run.process.returncode == 0, run.output
    return run


@pytest.fixture(scope="module")
def alone(two: Run) -> dict:
    """Its results, before anything was added to it."""
    return results(two.root)


def test_points_share_what_does_not_differ(two: Run, alone: dict) -> None:
    counts = {stage: len(made(two.root, stage)) for stage in ("data", "sft", "reward_model", "policy", "evaluation")}
    assert counts == {"data": 1, "sft": 1, "reward_model": 1, "policy": 4, "evaluation": 0}
    assert [(row["kl_coef"], row["seed"]) for row in alone["points"]] == [
        ("0.1", 0),
        ("1.0", 0),
        ("0.1", 1),
        ("1.0", 1),
    ]
    assert executed(two.root) == 3 + 4


def test_tables_verdicts_and_the_page_are_told(two: Run) -> None:
    assert "4 finished, 0 failed" in two.process.stdout
    assert "A weaker KL term lets the policy go further" in two.process.stdout
    page = file_of(two.root, "study.html").read_text()
    assert "Two KL coefficients" in page
    assert page.count("<svg") == 2  # the figure and the claim's


def test_the_points_are_children_of_the_study_in_mlflow(two: Run, alone: dict) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{two.root}/mlflow.db", f"sqlite:///{two.root}/mlflow.db")
    experiment = next(e.experiment_id for e in client.search_experiments() if e.name != "Default")
    runs = client.search_runs([experiment])
    assert {run.info.status for run in runs} == {"FINISHED"}
    (study,) = [run for run in runs if run.info.run_name == "study two"]
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{study.info.run_id}'")
    tags = [run.data.tags for run in children]
    axes = sorted((each["axis.kl_coef"], each["seed"]) for each in tags if "axis.kl_coef" in each)
    assert axes == [("0.1", "0"), ("0.1", "1"), ("1.0", "0"), ("1.0", "1")]
    found = client.search_runs([experiment], "tags.`axis.kl_coef` = '0.1' and tags.study = 'two'")
    assert len(found) == 2
    names = {item.path for item in client.list_artifacts(study.info.run_id, "figures")}
    assert names == {f"figures/{name}.{kind}" for name in ("01_axis", "claims_1") for kind in ("png", "svg")}
    assert not client.search_registered_models()  # a study's models are compared, not used
    assert study.data.metrics["points"] == 4.0


def test_a_finished_study_starts_nothing_and_a_new_seed_only_its_own_points(two: Run, alone: dict) -> None:
    before, count = made(two.root, "policy"), executed(two.root)
    again = rloo(two.place, "study", "two.yaml", "--no-prefect")
    assert again.process.returncode == 0, again.output
    assert executed(two.root) == count
    assert results(two.root) == alone
    assert rloo(two.place, "study", "two.yaml", "--plan").process.returncode == 0
    more = rloo(two.place, "study", "two.yaml", "--no-prefect", "--seeds", "3")
    assert more.process.returncode == 0, more.output
    assert executed(two.root) == count + 2
    assert set(before) < set(made(two.root, "policy"))
    assert len(results(two.root)["points"]) == 6
    assert results(two.root)["points"][:4] == alone["points"]


def test_killed_twice_and_started_again_it_ends_with_the_same_tables(two: Run, alone: dict, tmp_path: Path) -> None:
    study_file(tmp_path)
    (tmp_path / "home").mkdir()
    root = tmp_path / "cwd" / "runs"
    for policies in (1, 2):
        kill_at(start(tmp_path, "study", "two.yaml", "--no-prefect"), root, policies)
    until(lambda: not living(root), "what it started to end", 120)
    last = rloo(tmp_path, "study", "two.yaml", "--no-prefect")
    assert last.process.returncode == 0, last.output
    assert results(root) == alone
    assert set(made(root, "policy")) <= set(made(two.root, "policy"))
    states = [json.loads(path.read_text()) for path in (root / "records").glob("*/run.json")]
    assert {state["status"] for state in states} == {"FINISHED"}


def test_a_point_that_fails_is_told_and_sinks_no_other(two: Run) -> None:
    axes = {"weight": {"label": "weight", "values": {"one": [], "broken": ["algorithm.advantage=own:broken"]}}}
    (two.place / "cwd" / "own.py").write_text(
        "def broken(rewards, scorable):\n    raise RuntimeError('as it was told to')\n"
    )
    name = study_file(two.place, "failing", axes=axes, seeds={"count": 1, "vary": "policy"}, figures=[], claims=[])
    run = rloo(two.place, "study", name)
    assert run.process.returncode == 1, run.output
    assert "as it was told to" in run.process.stderr
    assert "Traceback" not in run.output
    found = results(two.root, "failing")
    assert [row["weight"] for row in found["points"]] == ["one"]
    ((name, reason),) = found["failed"]
    assert name == "weight=broken, seed=0"
    assert reason.startswith("policy: ")
    assert "as it was told to" in reason
    assert prefect_state(two.root, "failing.yaml") == ("FAILED", "1 point failed: weight=broken, seed=0.")
    state = json.loads((two.root / "records" / "study-failing.yaml-laptop" / "run.json").read_text())
    assert state["status"] == "FAILED"


def prefect_state(root: Path, study: str) -> tuple[str, str]:
    """How a study's flow run ended: type of its state, and what the state's message says first."""
    query = (
        "select state.type, state.message from flow_run join flow_run_state state on flow_run.state_id = state.id "
        "where flow_run.name like ?"
    )
    with closing(sqlite3.connect(root / "prefect" / "prefect.db")) as database:
        ((kind, message),) = database.execute(query, [f"{study},%"])
    return kind, message.partition(" The artifact")[0]


@pytest.mark.skipif(importlib.util.find_spec("prefect_dask") is None, reason="prefect-dask is not installed")
def test_two_dask_workers_do_the_same(two: Run, alone: dict) -> None:
    name = study_file(two.place, "dask", seeds={"count": 1, "first": 7, "vary": "policy"})
    run = rloo(two.place, "study", name, "--runner", "dask", "--workers", "2")
    assert run.process.returncode == 0, run.output
    assert [row["seed"] for row in results(two.root, "dask")["points"]] == [7, 7]
    until(lambda: not living(two.root), "what it started to end", 120)


def start(place: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    command = [str(Path(sys.executable).parent / "rloo"), *arguments]
    return subprocess.Popen(
        command, cwd=place / "cwd", env={**environment, "HOME": str(place / "home")}, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def kill_at(process: "subprocess.Popen[bytes]", root: Path, policies: int) -> None:
    """SIGKILL once so many policies are published."""
    until(lambda: len(made(root, "policy")) >= policies or process.poll() is not None, "policies")
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()


def living(root: Path) -> list[int]:
    """Processes that were started in a run root's directory and still live."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == root.parent:
                found.append(int(process.name))
        except OSError:
            continue
    return found
