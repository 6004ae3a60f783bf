"""The report of a whole run: there when the run ends, in MLflow too, made again by a command, readable by everyone."""

import json

import pytest

from tests import browser
from tests.conftest import rloo

SECTIONS = (
    "Summary",
    "Training",
    "Comparisons",
    "Distributions",
    "Reward model",
    "Samples",
    "Data",
    "Lineage",
    "Config",
)


@pytest.fixture(scope="module")
def file(tiny_run):
    path, *_ = sorted(tiny_run.root.glob("records/*/files/report.html"))  # later runs in the same place have theirs
    return path


def test_it_says_what_the_run_has_found(tiny_run, file):
    html = file.read_text(encoding="utf-8")
    assert [f">{section}" in html for section in SECTIONS] == [True] * len(SECTIONS)
    (directory,) = (tiny_run.root / "store" / "evaluation").iterdir()
    summary = json.loads((directory / "evaluation.json").read_text())
    for value in (summary["evaluation/policy/sampled/gold_reward"], summary["evaluation/sft/greedy/proxy_reward"]):
        assert f"<td>{value:.2f}</td>".replace("-", "−") in html
    sample = json.loads((directory / "samples.json").read_text())[0]
    assert sample["prompt"].split("POST:")[1].split("\n")[0].strip() in html
    assert "Dropped rows" in html
    assert html.count('aria-hidden="true"') == 8


def test_mlflow_has_the_report_and_its_figures(tiny_run):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tiny_run.root}/mlflow.db"
    client = MlflowClient(uri, uri)
    experiments = [e.experiment_id for e in client.search_experiments() if e.name != "Default"]
    runs = {run.data.tags.get("stage", ""): run.info.run_id for run in client.search_runs(experiments)}
    assert "report.html" in {item.path for item in client.list_artifacts(runs[""])}
    figures = {item.path for item in client.list_artifacts(runs["evaluation"], "figures")}
    wanted = {"win_rates", "length", "proxy_reward", "gold_reward", "calibration", "reward_against_kl"}
    assert {f"figures/{name}.png" for name in wanted} <= figures


def test_a_command_makes_it_again(tiny_run, file):
    before = file.read_bytes()
    file.unlink()
    process = rloo(tiny_run.place, "report", "--no-open").process
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.strip().endswith("files/report.html")
    assert file.read_bytes() == before
    assert "there is no run nowhere" in rloo(tiny_run.place, "report", "nowhere").output


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_everyone_can_read_it(file, tmp_path, width, dark):
    assert browser.console_errors(file, tmp_path, width) == []
    assert browser.accessibility_problems(file, tmp_path, width, dark) == []


def test_it_asks_for_nothing(file, tmp_path):
    assert browser.requests_of(file, tmp_path) == set()
