"""`rloo lineage | prune | sync | plan --verify` as typed, on a run root that has been used."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.store import Store
from pipelines.tracking.models import model_of
from rloo_core.settings import ExperimentSettings
from tests.pipelines.test_champion import client_of
from tests.pipelines.test_prune import with_kl
from tests.pipelines.test_runner import run, settings  # noqa: F401 (a fixture)

Typed = Callable[..., Result]


@pytest.fixture
def rloo(settings: ExperimentSettings) -> Typed:  # noqa: F811
    """Type a command about a run root where two runs have registered their models."""
    assert run(settings)[0] == 0
    assert run(with_kl(settings, 0.2))[0] == 0
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    root = ["experiment=tiny", f"paths.root={settings.paths.root}", "tracking.experiment=trial"]
    return lambda *words: runner.invoke(app, [*words, *root])


def test_lineage_goes_back_to_the_rows_in_three_forms(rloo: Typed) -> None:
    text = rloo("lineage", "trial-policy")
    assert text.exit_code == 0, text.output
    assert [name in text.output for name in ("trial-policy", "trial-sft", "trial-reward-model", "sha256")] == [True] * 4
    tree = json.loads(rloo("lineage", "trial-policy/1", "--json").output)
    assert "trial-policy" in json.dumps(tree)
    chart = rloo("lineage", "trial-policy/1", "--mermaid").output
    assert chart.startswith("flowchart")
    missing = rloo("lineage", "trial-polcy")
    assert (missing.exit_code, "trial-polcy" in missing.output) == (2, True)


def test_prune_shows_and_then_removes_and_marks_the_models_in_mlflow(
    rloo: Typed,
    settings: ExperimentSettings,  # noqa: F811
) -> None:
    client = client_of(settings)
    for version in client.search_model_versions("name = 'trial-policy'"):
        client.delete_model_version(version.name, version.version)
    _, old = Store(settings.paths.root).manifests("policy")
    shown = rloo("prune", "--keep", "1")
    assert "policy" in shown.output
    assert shown.output.splitlines()[-1].endswith("could go; `rloo prune --yes` removes it")
    assert Store(settings.paths.root).find("policy", old.fingerprint)[0] is not None
    done = rloo("prune", "--keep", "1", "--yes")
    assert done.output.splitlines()[-1].endswith("removed")
    assert Store(settings.paths.root).find("policy", old.fingerprint)[0] is None
    assert old.run_id is not None
    model = model_of(client, old.run_id)
    assert model is not None
    assert client.get_logged_model(model.model_id).tags["store.pruned"] == "true"
    assert rloo("prune", "--keep", "1").output.strip() == "nothing to remove"


def test_a_model_whose_leftovers_go_is_not_marked(rloo: Typed, settings: ExperimentSettings) -> None:  # noqa: F811
    store, client = Store(settings.paths.root), client_of(settings)
    newest = store.manifests("policy")[0]
    left = store.path("policy", newest.fingerprint) / "checkpoints"  # its process was killed before it removed them
    left.mkdir()
    (left / "state").write_text("x")
    assert "checkpoints of a stage that has finished" in rloo("prune", "--yes").output
    assert not left.exists()
    assert newest.run_id is not None
    model = model_of(client, newest.run_id)
    assert model is not None
    assert "store.pruned" not in client.get_logged_model(model.model_id).tags


def test_sync_says_whether_something_is_left(rloo: Typed) -> None:
    done = rloo("sync")
    assert (done.exit_code, done.output.strip()) == (0, "this MLflow has everything")


def test_a_plan_reads_every_byte_if_it_is_told_to(rloo: Typed, settings: ExperimentSettings) -> None:  # noqa: F811
    assert rloo("plan").exit_code == 0
    (file,) = (Path(settings.paths.root) / "store" / "sft").glob("*/model/model.safetensors")
    state, good = file.stat(), file.read_bytes()
    file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert "damaged" not in rloo("plan", "--until", "sft").output
    assert (
        "output damaged: model/model.safetensors has other content" in rloo("plan", "--until", "sft", "--verify").output
    )
