"""Runs that a deployment starts: parameters, what belongs to the machine, and pages that show text as text."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.config_errors import ConfigError
from pipelines.deployed import RunFailed, keep_overrides, request, run_deployed, run_root
from pipelines.flow_parameters import as_parameters, flow_run_name
from pipelines.outcome import directly
from pipelines.plan import Selection
from pipelines.preflight import NotReady
from pipelines.services_deploy import FILE, FLOWS
from rloo_core.settings import ExperimentSettings
from tests.pipelines import fake_stages
from tests.pipelines.test_runner import settings  # noqa: F401 (a fixture)

NOTHING: dict[str, Any] = {
    "experiment": "tiny", "overrides": [], "from_stage": None, "until": None, "only": [], "force": [], "dry_run": False,
}  # fmt: skip


def test_every_deployment_starts_a_flow_that_takes_its_parameters() -> None:
    """Read as Prefect reads it: a colon too many, and nothing at all is deployed."""
    deployments = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    names = [each["name"] for each in deployments]
    assert len(names) == len(set(names)) > 7
    for each in deployments:
        module, _, function = each["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), function)
        assert flow.name in FLOWS
        assert set(each["parameters"]) <= set(flow.validate_parameters(each["parameters"]))


def test_the_run_root_and_what_the_machine_was_given_come_from_the_machine(tmp_path: Path) -> None:
    keep_overrides(tmp_path, ["tracking.experiment=machine", "compute.threads=2"])
    found, overrides, _ = request({**NOTHING, "overrides": ["seed=3", "compute.threads=1"]}, tmp_path)
    assert (found.paths.root, found.tracking.experiment, found.seed) == (str(tmp_path), "machine", 3)
    assert found.compute.threads == 1, "what a run is given wins"
    assert overrides[-1] == f"paths.root={tmp_path}"


@pytest.mark.parametrize(
    "text", ["paths.root=/tmp", "paths=default", "tracking.uri=http://x", "tracking.artifacts=/x", "tracking=local",
             "services.work_pool=x", "+paths.root=/tmp", "++tracking.uri=x", "~paths.root=x"],
)  # fmt: skip
def test_what_is_the_machine_s_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        request({**NOTHING, "overrides": [text]}, tmp_path)


def test_the_selection_is_that_of_the_command_line(tmp_path: Path) -> None:
    _, _, selection = request({**NOTHING, "from_stage": "sft", "until": "policy", "force": ["sft"]}, tmp_path)
    assert selection == Selection((), "sft", "policy", ("sft",))
    with pytest.raises(ConfigError, match="--only names the stages to run"):
        request({**NOTHING, "only": ["sft"], "until": "policy"}, tmp_path)


def test_a_retry_forces_nothing_that_was_made_anew_before(
    settings: ExperimentSettings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLOO_ROOT", settings.paths.root)
    nightly = {**NOTHING, "force": ["data", "sft", "evaluation"]}
    run_deployed(nightly, "flow-0", lambda job: job.run(directly))
    fake_stages.calls.clear()
    fake_stages.trouble["evaluation"] = ValueError("once")
    with pytest.raises(RunFailed):
        run_deployed(nightly, "flow-1", lambda job: job.run(directly))
    fake_stages.trouble.clear()
    assert fake_stages.calls == ["data", "sft", "evaluation"]
    run_deployed(nightly, "flow-1", lambda job: job.run(directly))
    assert fake_stages.calls == ["data", "sft", "evaluation", "evaluation"]
    run_deployed(nightly, "flow-2", lambda job: job.run(directly))
    assert fake_stages.calls[4:] == ["data", "sft", "evaluation"]


def test_a_deployment_without_a_run_root_says_how_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOO_ROOT", "runs")
    with pytest.raises(NotReady, match="RLOO_ROOT='runs': a deployment carries the absolute run root; make it with"):
        run_root()


def test_what_was_typed_becomes_parameters_and_a_name() -> None:
    parameters = as_parameters(["experiment=tiny", "seed=1"], Selection(only=("sft",), force=("sft",)))
    expected = {**NOTHING, "overrides": ["seed=1"], "only": ["sft"], "force": ["sft"]}
    del expected["dry_run"]
    assert parameters == expected
    assert flow_run_name({**NOTHING, **parameters}) == "tiny, only sft, force sft"
    assert flow_run_name({**NOTHING, "dry_run": True}) == "tiny, dry run"


@pytest.mark.parametrize(
    "text",
    ["| a | b |\nnew row", "<img src=x onerror=alert(1)>", "[click](javascript:alert(1))", "![x](http://x/y.png)",
     "**b** _i_", "# title", "`code`", "http://example.com/?a=1&b=2", "&lt;script&gt;", "a\\|b", "x\x1b[31mred"],
)  # fmt: skip
def test_text_of_models_is_shown_as_text(text: str) -> None:
    from pipelines.flow_artifacts import escaped

    shown = escaped(text)
    alone = re.sub(r"\\[\\`*_\[\]<>|~$&@#!:.]", "", shown)
    assert not set("<>|[]`*_&#\\\n\x1b") & set(alone), shown
    assert not re.search(r"(?<!\\)://", shown)
    assert re.sub(r"\\(.)", r"\1", shown) == text.replace("\n", " ⏎ ").replace("\x1b", "�")


@pytest.mark.parametrize("text", ["method=rloo, kl_coef=0.1, seed=3", "kl_coef 0.05", "", "C"])
def test_a_cell_that_means_itself_is_found_by_the_search_field(text: str) -> None:
    from pipelines.flow_artifacts import cell

    assert cell(text) == text


@pytest.mark.parametrize(
    "text", ["own|<i>, seed=0", "_a_ b", "a_, b", "see www.x.y", "- a", "1. a", "a *b*", "a://b", "a\\b"]
)
def test_a_cell_with_markup_is_escaped(text: str) -> None:
    from pipelines.flow_artifacts import cell, escaped

    assert cell(text) == escaped(text)
