"""Studies as a person starts them: two points, two seeds, on tiny experiment; stopped, added to, on Dask and Ray."""

import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.conftest import Run, rloo
from tests.end_to_end.services import SMALL, until
from tests.end_to_end.started import living, open_to_others, points, start

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


def test_the_prefect_server_knows_the_end_of_flow_and_points(two: Run) -> None:
    assert list((two.root / "flows").iterdir()) == []


def test_tables_verdicts_and_the_page_are_told(two: Run) -> None:
    assert "4 finished, 0 failed" in two.process.stdout
    assert "A weaker KL term lets the policy go further" in two.process.stdout
    page = file_of(two.root, "study.html").read_text()
    assert "Two KL coefficients" in page
    assert page.count("<svg") == 2  # the figure and the claim's


def in_mlflow(root: Path) -> "tuple[Any, str, Any]":
    """MLflow's client, the experiment, and the study's run, found by its tags."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{root}/mlflow.db", f"sqlite:///{root}/mlflow.db")
    experiment = next(e.experiment_id for e in client.search_experiments() if e.name != "Default")
    (study,) = client.search_runs([experiment], "tags.record = 'study-two.yaml-laptop'")
    return client, experiment, study


def test_the_points_are_children_of_the_study_in_mlflow(two: Run, alone: dict) -> None:
    client, experiment, study = in_mlflow(two.root)
    assert {run.info.status for run in client.search_runs([experiment])} == {"FINISHED"}
    assert study.info.run_name == "study two"
    of_study = f"tags.`mlflow.parentRunId` = '{study.info.run_id}'"
    tags = [run.data.tags for run in client.search_runs([experiment], of_study)]
    axes = sorted((each["axis.kl_coef"], each["seed"]) for each in tags if "axis.kl_coef" in each)
    assert axes == [("0.1", "0"), ("0.1", "1"), ("1.0", "0"), ("1.0", "1")]
    by_tags = "tags.`axis.kl_coef` = '1.0' and tags.seed = '1' and tags.study = 'two'"
    (point,) = client.search_runs([experiment], by_tags)
    assert point.data.tags["mlflow.parentRunId"] == study.info.run_id
    assert point.info.run_name == "kl_coef=1.0, seed=1"
    assert not client.search_registered_models()  # a study's models are compared, not used


def test_the_studys_run_in_mlflow_has_what_was_found(two: Run, alone: dict, tmp_path: Path) -> None:
    client, _, study = in_mlflow(two.root)
    tables = {}
    for name in ("points", "claims"):
        table = json.loads(
            Path(client.download_artifacts(study.info.run_id, f"tables/{name}.json", tmp_path)).read_text()
        )
        tables[name] = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert tables == {name: alone[name] for name in tables}
    for name in ("results.json", "results.md", "study.html"):
        kept = Path(client.download_artifacts(study.info.run_id, name, tmp_path))
        assert kept.read_bytes() == file_of(two.root, name).read_bytes()
    kinds = {"png": b"\x89PNG", "svg": b"<?xml"}
    names = {item.path for item in client.list_artifacts(study.info.run_id, "figures")}
    assert names == {f"figures/{name}.{kind}" for name in ("01_axis", "claims_1") for kind in kinds}
    for name in names:
        content = Path(client.download_artifacts(study.info.run_id, name, tmp_path)).read_bytes()
        assert content.startswith(kinds[name[-3:]])
        assert name.endswith("png") or ElementTree.fromstring(content).tag.endswith("svg")
    means = {name: sum(row["kl"] for row in alone["points"] if row["kl_coef"] == name) / 2 for name in ("0.1", "1.0")}
    shown = study.data.metrics
    assert (shown["points"], shown["failed"]) == (4.0, 0.0)
    assert {name: shown[f"kl/kl_coef_{name}"] for name in means} == pytest.approx(means)


def in_prefect(root: Path, study: str) -> dict[str, tuple[str, Any, str]]:
    """Type, content and description of each artifact of a study's flow run, by its key."""
    query = (
        "select artifact.key, artifact.type, artifact.data, artifact.description from artifact "
        "join flow_run on artifact.flow_run_id = flow_run.id where flow_run.name like ?"
    )
    with closing(sqlite3.connect(root / "prefect" / "prefect.db")) as database:
        rows = database.execute(query, [f"{study},%"]).fetchall()
    return {key: (kind, json.loads(str(data)), description) for key, kind, data, description in rows}


def test_prefect_shows_the_progress_the_points_and_the_results(two: Run) -> None:
    shown = in_prefect(two.root, "two.yaml")
    assert set(shown) == {"study", "points", "results"}
    assert shown["study"] == ("progress", 100, "Two KL coefficients: 4/4: 4 done, 0 reused, 0 failed")
    kind, rows, _ = shown["points"]
    points = {row["point"]: row for row in json.loads(rows)}
    assert kind == "table"
    assert sorted(points) == [f"kl_coef={coef}, seed={seed}" for coef in ("0.1", "1.0") for seed in (0, 1)]
    assert {row["state"] for row in points.values()} == {"done"}
    assert all(float(row["seconds"]) > 0 and float(row["memory, GiB"]) > 0 for row in points.values())
    kind, text, _ = shown["results"]
    assert kind == "markdown"
    assert text.startswith("### Two KL coefficients\n")
    assert "A weaker KL term lets the policy go further" in text
    assert "MLflow run of the whole" in text


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
        kill_at(start(tmp_path, "study", "two.yaml", "--no-prefect")[0], root, policies)
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
    shown = in_prefect(two.root, "failing.yaml")
    assert shown["study"][2].endswith(
        "2/2: 0 done, 1 reused, 1 failed"
    )  # kl_coef is 0.1 by default, so seed 0 is there
    rows = {row["point"]: row for row in json.loads(shown["points"][1])}
    assert {name: row["state"] for name, row in rows.items()} == {"weight=one, seed=0": "reused", name: "failed"}
    assert "as it was told to" in rows[name]["why"]
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


@pytest.mark.parametrize(("runner", "seed"), [("dask", 7), ("ray", 8)])
def test_two_workers_of_a_cluster_do_the_same_and_listen_to_nobody_else(two: Run, runner: str, seed: int) -> None:
    if importlib.util.find_spec(f"prefect_{runner}") is None:
        pytest.skip(f"prefect-{runner} is not installed: pip install 'rloo[{runner}]'")
    name = study_file(two.place, runner, seeds={"count": 1, "first": seed, "vary": "policy"})
    process, told = start(two.place, "study", name, "--runner", runner, "--workers", "2")
    heard: set[str] = set()
    until(lambda: heard.update(open_to_others(two.root)) or process.poll() is not None, "the end of the study", 1200)
    assert process.returncode == 0, told.read_text()
    assert heard == set()
    assert [row["seed"] for row in results(two.root, runner)["points"]] == [seed, seed]
    until(lambda: not living(two.root), "what it started to end", 120)
    assert not (two.place / "home" / ".ray").exists()


def test_a_point_whose_process_is_killed_is_told_and_made_the_next_time(two: Run) -> None:
    base = [*STUDY["base"], "algorithm.learning_rate=2.0e-4"]  # new points of the same SFT and reward model
    name = study_file(two.place, "killed", base=base, seeds={"count": 1, "vary": "policy"})
    process, told = start(two.place, "study", name, "--no-prefect", "--workers", "1")
    os.kill(until(lambda: points(two.root), "a point")[0], signal.SIGKILL)
    assert process.wait(600) == 1, told.read_text()
    found = results(two.root, "killed")
    ((failed, reason),) = found["failed"]
    assert failed == "kl_coef=0.1, seed=0"
    assert reason.startswith("its process was ended by SIGKILL")
    assert [row["kl_coef"] for row in found["points"]] == ["1.0"]
    again = rloo(two.place, "study", name, "--no-prefect")
    assert again.process.returncode == 0, again.output
    assert [row["kl_coef"] for row in results(two.root, "killed")["points"]] == ["0.1", "1.0"]


@pytest.mark.parametrize(("number", "code", "options"), [("SIGINT", 130, []), ("SIGTERM", 143, ["--no-prefect"])])
def test_a_study_that_is_stopped_leaves_nothing_behind_and_goes_on(
    two: Run, number: str, code: int, options: list[str]
) -> None:
    base = [*STUDY["base"], f"algorithm.learning_rate={code}.0e-6"]
    name = study_file(two.place, number, base=base, seeds={"count": 1, "vary": "policy"})
    process, told = start(two.place, "study", name, "--workers", "1", *options)
    until(lambda: points(two.root), "a point")
    process.send_signal(signal.Signals[number])
    assert process.wait(120) == code, told.read_text()
    assert told.read_text().splitlines()[-1].endswith("stopped; the same command goes on from the last checkpoint")
    assert "Traceback" not in told.read_text()
    until(lambda: not living(two.root), "what it started to end", 120)
    record = two.root / "records" / f"study-{number}.yaml-laptop"
    assert json.loads((record / "run.json").read_text())["status"] == "KILLED"
    assert not list(record.glob("files/*"))  # no tables of half a study
    again = rloo(two.place, "study", name, "--no-prefect")
    assert again.process.returncode == 0, again.output
    assert len(results(two.root, number)["points"]) == 2


def kill_at(process: "subprocess.Popen[bytes]", root: Path, policies: int) -> None:
    """SIGKILL once so many policies are published."""
    until(lambda: len(made(root, "policy")) >= policies or process.poll() is not None, "policies")
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    process.wait()
