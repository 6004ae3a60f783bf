"""What a person finds in the pages of MLflow and Prefect after a run, in a real browser. Pictures are kept.

They lie in the directory that SCREENSHOTS names, or among pytest's temporary directories (`pages`).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.browser import Browser, chromium
from tests.end_to_end.services import Machine, until

STAGES = ("data", "sft", "reward_model", "policy", "evaluation")
DRAWN = "document.querySelectorAll('.js-plotly-plot .trace').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, here: Machine, full: str) -> Iterator[Browser]:
    assert here.state(full) == ("COMPLETED", "Completed")
    pictures = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("pages"))
    pictures.mkdir(parents=True, exist_ok=True)
    print(f"\npictures are in {pictures}")
    with chromium(tmp_path_factory.mktemp("browser"), pictures) as tab:
        yield tab


@pytest.fixture(scope="module")
def runs(here: Machine, full: str) -> dict[str, str]:
    """MLflow's run ids by stage; the parent under ""."""
    return {run.data.tags.get("stage", ""): run.info.run_id for run in here.mlflow_runs(full)}


@pytest.fixture(scope="module")
def experiment(here: Machine, full: str) -> str:
    """Address of the experiment's pages."""
    return f"{here.mlflow}/#/experiments/{here.mlflow_runs(full)[0].info.experiment_id}"


def test_mlflow_lists_the_run_with_its_stages_folded_in(browser: Browser, experiment: str) -> None:
    browser.open(f"{experiment}/runs", "tiny", "6 matching runs")
    browser.picture("mlflow-runs")


def test_mlflow_s_parent_run_leads_to_the_stages(browser: Browser, experiment: str, runs: dict[str, str]) -> None:
    browser.open(f"{experiment}/runs/{runs['']}", "Child runs", *STAGES, *runs.values())
    browser.picture("mlflow-parent")


def test_mlflow_shows_curves(browser: Browser, experiment: str, runs: dict[str, str]) -> None:
    browser.open(f"{experiment}/runs/{runs['policy']}/model-metrics", "policy (advantage/std)", "truncated_frac")
    until(lambda: browser.evaluate(DRAWN) >= 3, "curves to be drawn", 240)
    browser.picture("mlflow-curves")


def test_mlflow_shows_the_samples_as_a_table(browser: Browser, experiment: str, runs: dict[str, str]) -> None:
    browser.open(
        f"{experiment}/runs/{runs['evaluation']}/artifacts/tables/samples.json", "samples.json", "policy_sampled"
    )
    browser.picture("mlflow-samples")


def test_mlflow_shows_the_model_version_with_its_lineage(browser: Browser, here: Machine) -> None:
    browser.open(
        f"{here.mlflow}/#/models/rloo-policy/versions/1", "Version 1", "from.sft", "from.reward_model", "from.data"
    )
    browser.picture("mlflow-model")


def test_prefect_shows_the_flow_run_with_its_stages(browser: Browser, here: Machine, full: str) -> None:
    browser.open(f"{here.prefect}/runs/flow-run/{full}", "tiny", "Completed", *STAGES)
    browser.picture("prefect-flow-run")


def test_prefect_shows_plan_and_report(browser: Browser, here: Machine, full: str) -> None:
    artifacts = {each["key"]: each for each in here.ask("artifacts/filter", {"flow_runs": {"id": {"any_": [full]}}})}
    browser.open(f"{here.prefect}/artifacts/artifact/{artifacts['plan']['id']}", "first run", "depends")
    browser.picture("prefect-plan")
    browser.open(
        f"{here.prefect}/artifacts/artifact/{artifacts['report']['id']}",
        "SFT → policy",
        "reward_model",
        "win rate, %",
        "Samples",
    )
    browser.picture("prefect-report")


def test_prefect_lists_the_deployments_and_asks_for_parameters(browser: Browser, here: Machine) -> None:
    browser.open(f"{here.prefect}/deployments", "nightly-tiny", "stage-policy", "full")
    browser.picture("prefect-deployments")
    deployment = here.ask("deployments/name/rloo/full")["id"]
    browser.open(f"{here.prefect}/deployments/deployment/{deployment}/run", "experiment", "overrides", "dry_run")
    browser.picture("prefect-parameters")
