"""Pruning: what nothing refers to goes, what a registered model needs never does."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, ModelVersionTag
from mlflow.store.entities import PagedList

from pipelines.evidence import PENDING
from pipelines.plan import Selection, make_plan
from pipelines.prune import removals, remove
from pipelines.records import records
from pipelines.store import Store
from pipelines.tracking.models import registered_outputs
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES
from tests.pipelines import fake_stages
from tests.pipelines.test_champion import client_of
from tests.pipelines.test_runner import run, settings  # noqa: F401 (a fixture)


def with_kl(settings: ExperimentSettings, kl_coef: float) -> ExperimentSettings:  # noqa: F811
    return settings.model_copy(update={"algorithm": settings.algorithm.model_copy(update={"kl_coef": kl_coef})})


def unregistered(settings: ExperimentSettings) -> ExperimentSettings:  # noqa: F811
    return settings.model_copy(update={"tracking": settings.tracking.model_copy(update={"register_models": False})})


def test_outputs_of_old_runs_go_and_what_newer_ones_were_made_from_stays(
    settings: ExperimentSettings,  # noqa: F811
) -> None:
    store = Store(settings.paths.root)
    for kl_coef in (0.1, 0.2, 0.3):
        assert run(with_kl(unregistered(settings), kl_coef))[0] == 0
    assert removals(store, [], keep_runs=3) == []
    going = removals(store, [], keep_runs=1)
    assert sorted(removal.stage for removal in going) == ["evaluation"] * 2 + ["policy"] * 2
    assert all(remove(removal, store) for removal in going)
    assert {name: len(list((store.root / "store" / name).iterdir())) for name in STAGES} == dict.fromkeys(STAGES, 1)
    again = {each.name: each.reason for each in make_plan(with_kl(unregistered(settings), 0.1), store)}
    assert again["policy"] == f"output pruned on {datetime.now(UTC):%Y-%m-%d}"
    fake_stages.calls.clear()
    assert run(with_kl(unregistered(settings), 0.3))[0] == 0
    assert fake_stages.calls == []  # the newest is whole
    assert run(with_kl(unregistered(settings), 0.1))[0] == 0
    assert fake_stages.calls == ["policy", "evaluation"]  # and the others are made again


def test_what_a_registered_model_needs_stays(settings: ExperimentSettings) -> None:  # noqa: F811
    store = Store(settings.paths.root)
    run(settings)
    run(with_kl(settings, 0.2))
    registered = registered_outputs(client_of(settings))
    assert {stage for stage, _ in registered} == {"sft", "reward_model", "policy"}
    going = removals(store, registered, keep_runs=1)
    assert [removal.stage for removal in going] == ["evaluation"]  # of the first run; nobody registers that
    version = client_of(settings).get_model_version("trial-policy", "1")
    assert store.path("policy", version.tags["fingerprint"]).is_dir()


def test_checkpoints_of_a_failed_run_stay_while_it_is_kept(settings: ExperimentSettings) -> None:  # noqa: F811
    store = Store(settings.paths.root)
    fake_stages.trouble["sft"] = ValueError("once")
    run(settings)
    fake_stages.trouble.clear()
    assert removals(store, [], keep_runs=1) == []
    assert run(with_kl(settings, 0.2), Selection(until="data"))[0] == 0
    (going,) = removals(store, [], keep_runs=1)
    assert (going.stage, going.reason) == ("sft", "checkpoints of no run that is kept")
    with store.lock("sft", going.fingerprint):  # somebody has begun to compute it
        assert removals(store, [], keep_runs=1) == []
        assert not remove(going, store)
    assert remove(going, store)
    assert not Path(going.path).exists()


def test_what_a_run_reads_by_now_stays(settings: ExperimentSettings) -> None:  # noqa: F811
    store = Store(settings.paths.root)
    for kl_coef in (0.1, 0.2):
        assert run(with_kl(unregistered(settings), kl_coef))[0] == 0
    going = removals(store, [], keep_runs=1)
    reader, policy = records(store.root)[-1].evidence, next(each for each in going if each.stage == "policy")
    assert {"stage": "policy", "action": "run", "fingerprint": policy.fingerprint} in reader.state.notes
    reader.take_up("")  # that run goes on
    reader.save()
    assert [remove(removal, store) for removal in going] == [False] * len(going)
    reader.close("FINISHED")
    assert all(remove(removal, store) for removal in going)


def test_an_output_that_mlflow_has_yet_to_get_stays(settings: ExperimentSettings) -> None:  # noqa: F811
    store = Store(settings.paths.root)
    for kl_coef in (0.1, 0.2):
        assert run(with_kl(unregistered(settings), kl_coef))[0] == 0
    policy = next(each for each in removals(store, [], keep_runs=1) if each.stage == "policy")
    waiting = store.root / PENDING / "k.json"
    waiting.write_text(json.dumps({"stage": "policy", "fingerprint": policy.fingerprint}))
    assert [each.stage for each in removals(store, [], keep_runs=1)] == ["evaluation"]


def test_checkpoints_that_a_killed_process_left_in_an_output_go(settings: ExperimentSettings) -> None:  # noqa: F811
    store = Store(settings.paths.root)
    assert run(settings)[0] == 0
    (output,) = (store.root / "store" / "sft").iterdir()
    (output / "checkpoints").mkdir()
    (output / "checkpoints" / "state").write_text("x" * 100)
    (going,) = removals(store, registered_outputs(client_of(settings)), keep_runs=1)
    assert (going.path, going.reason) == (output / "checkpoints", "checkpoints of a stage that has finished")
    assert remove(going, store)
    assert store.find("sft", output.name, verify=True)[0] is not None


def test_versions_on_every_page_are_seen() -> None:
    pages = {None: ([version("a")], "next"), "next": ([version("b")], None)}

    class Client:
        def search_model_versions(self, page_token: str | None) -> PagedList[ModelVersion]:
            return PagedList(*pages[page_token])

    assert registered_outputs(cast("MlflowClient", Client())) == [("policy", "a"), ("policy", "b")]


def version(fingerprint: str) -> ModelVersion:
    tags = [ModelVersionTag("stage", "policy"), ModelVersionTag("fingerprint", fingerprint)]
    return ModelVersion("m", "1", 0, tags=tags)
