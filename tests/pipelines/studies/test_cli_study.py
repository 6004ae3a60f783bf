"""`rloo study` before anything runs: exit codes, plans, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from tests.pipelines.studies.examples import study_file

AXES = {"sigma": {"label": "σ", "setting": "algorithm.reward_noise", "values": [0.0, 3.0]}}

CLUSTER = ["small.yaml", "--runner", "dask", "--address", "tcp://a:1"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Type `rloo study` with the small study in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipelines.studies.starting._directly", lambda *_: pytest.fail("a study was started"))
    study_file(tmp_path, axes=AXES)
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    return lambda *words: runner.invoke(app, ["study", *words])


def test_a_plan_names_what_would_run_and_exits_with_3(study, tmp_path):
    shown = study("small.yaml", "--plan", "--seeds", "2")
    assert shown.exit_code == 3
    assert "small, laptop: 4 points" in shown.output
    assert [line.strip() for line in shown.output.splitlines() if "seed=" in line] == [
        "sigma=0.0, seed=0", "sigma=3.0, seed=0", "sigma=0.0, seed=1", "sigma=3.0, seed=1"
    ]  # fmt: skip
    assert not (tmp_path / "runs").exists()


def test_a_plan_as_json(study):
    shown = study("small.yaml", "--json", "--seeds", "1", "--workers", "2", "--memory", "8")
    assert shown.exit_code == 3
    assert json.loads(shown.stdout) == [
        {"study": "small", "profile": "laptop", "points": 2, "workers": 2, "warnings": [],
         "to_run": ["sigma=0.0, seed=0", "sigma=3.0, seed=0"]}
    ]  # fmt: skip


def test_a_plan_of_what_is_finished_exits_with_0(study, monkeypatch):
    monkeypatch.setattr("pipelines.studies.run.to_do", lambda prepared: [])
    shown = study("small.yaml", "--plan", "--seeds", "1")
    assert shown.exit_code == 0
    assert "nothing" in shown.output


def test_a_study_too_large_for_this_machine_can_be_looked_at(study, monkeypatch):
    monkeypatch.setattr("pipelines.studies.budget.free_memory", lambda: 1.0)
    shown = study("small.yaml", "--plan", "--seeds", "1")
    assert shown.exit_code == 3
    assert "none on this machine (a point may take 2.0 GiB" in shown.output
    assert json.loads(study("small.yaml", "--json", "--seeds", "1").stdout)[0]["workers"] is None
    assert study("small.yaml", "--no-prefect", "--seeds", "1").exit_code == 2


def test_a_clusters_points_are_not_measured_by_this_machine(study, monkeypatch):
    monkeypatch.setattr("pipelines.studies.budget.free_memory", lambda: 0.1)
    shown = study(*CLUSTER, "--workers", "3", "--json", "--seeds", "2")
    assert shown.exit_code == 3
    assert json.loads(shown.stdout)[0]["workers"] == 3


def test_what_real_data_cannot_measure_is_told_beforehand(study):
    shown = study("overoptimisation", "--profile", "paper", "--plan", "--seeds", "1")
    assert shown.exit_code == 3
    lines = [line.strip() for line in shown.output.splitlines()]
    assert lines[0].startswith("overoptimisation, paper: 3 points")
    assert lines[1].startswith("Left out, since the true (gold) reward of real data is not known: gold reward; highest")
    assert lines[1].endswith("; and 4 claims about it")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nosuch"], "study nosuch: there is no such study; conf/study has algorithms, "),
        (["small.yaml", "--profile", "nosuch"], "there is no profile nosuch; it has laptop, quick and paper"),
        (["small.yaml", "algorithm.stepz=3"], "there is no setting algorithm.stepz; did you mean algorithm.steps?"),
        (["small.yaml", "algorithm.reward_noise=1"], "algorithm.reward_noise is set by the axis sigma"),
        (["small.yaml", "seed=3"], "say how many with --seeds"),
        (["small.yaml", "--seeds", "0"], "--seeds"),
        (["small.yaml", "--workers", "999", "--plan"], "--workers 999: so many points take 1998.0 GiB"),
        (["small.yaml", "--worker", "1"], "--worker"),
        (["small.yaml", "--runner", "dask", "--no-prefect"], "does not go with --no-prefect"),
        (["small.yaml", "--address", "tcp://a:1"], "say of which with --runner dask"),
        ([*CLUSTER, "--plan"], "--workers is missing"),
        ([*CLUSTER, "--workers", "2", "--memory", "4"], "--memory is of this machine"),
    ],
)
def test_what_is_wrong_exits_with_2_and_a_sentence(study, tmp_path, words, sentence):
    shown = study(*words)
    assert shown.exit_code == 2
    assert sentence in shown.output
    assert "Traceback" not in shown.output
    assert not (tmp_path / "runs").exists()
