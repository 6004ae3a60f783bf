"""Models in MLflow: what is logged, registered and linked, once each, whatever is done twice."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.config import load_settings
from pipelines.tracking import ModelWish, StageRun, Tracker, mirror, models
from pipelines.tracking.datasets import dataset_inputs
from pipelines.tracking.models import ModelReference, model_of
from rloo_core.settings import ExperimentSettings
from tests.pipelines.trackers import begin, client, no_warning, publish, settle, start, until


@pytest.fixture
def settings(empty_mlflow: Path) -> ExperimentSettings:
    return load_settings(["experiment=tiny", f"paths.root={empty_mlflow}", "tracking.experiment=trial"])


@pytest.fixture
def tracker(settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    monkeypatch.setattr(mirror, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(mirror, "PAUSES", (0.05,))
    tracker = Tracker.open(settings, no_warning, no_warning)
    begin(tracker)
    yield tracker
    tracker.mirror.stop(0.0)


def write_data(folder: Path) -> Path:
    folder.mkdir(parents=True)
    names = [f"{kind}-{split}" for kind in ("prompts", "demonstrations", "preferences") for split in ("train", "test")]
    tables = {name: {"rows": 10, "sha256": format(index, "x") * 64} for index, name in enumerate(names)}
    (folder / "dataset.json").write_text(json.dumps({"source": "synthetic", "tables": tables}))
    return folder


def write_model(folder: Path, head: str = "ForCausalLM") -> Path:
    """A tiny random model with a tokenizer of a few words, without any network."""
    import torch
    import transformers
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as token_models

    words = {"<pad>": 0, "<eos>": 1, "once": 2, "upon": 3, "a": 4, "time": 5}
    core = Tokenizer(token_models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token="<pad>")
    config = transformers.GPTNeoXConfig(
        vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=32, num_labels=1, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, "GPTNeoX" + head)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_config(folder: Path) -> Path:
    """A model that nobody loads."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["GPTNeoXForCausalLM"], "dtype": "float32"}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def finish_model(
    tracker: Tracker, stage: str, files: Path, name: str | None, copy: bool = True, **inputs: str
) -> StageRun:
    """A stage that leaves `files` (with `model/`)."""
    run = start(tracker, stage, **inputs)
    run.model(ModelWish(copy, name, {"from.data": "d" * 32}))
    publish(tracker, run, files)
    return run


@pytest.mark.parametrize(
    ("stage", "names"),
    [
        ("sft", ["demonstrations-train"]),
        ("reward_model", ["preferences-train"]),
        ("policy", ["prompts-train"]),
        ("evaluation", ["prompts-test"]),
    ],
)
def test_a_stage_is_linked_to_the_tables_it_reads(stage: str, names: list[str], tmp_path: Path) -> None:
    inputs = dataset_inputs(stage, write_data(tmp_path / "data"), tmp_path / "stored")
    assert [each.dataset.name for each in inputs] == names
    assert [each.tags[0].value for each in inputs] == [names[0].rsplit("-")[-1]]
    assert len(inputs[0].dataset.digest) == 32


def load_with_mlflow(tracker: Tracker, uri: str) -> Any:
    """What `mlflow.transformers.load_model` makes of a model, as a person's own script calls it."""
    import mlflow

    mlflow.set_tracking_uri(tracker.connection.uri)
    try:
        return mlflow.transformers.load_model(uri)
    finally:
        mlflow.set_tracking_uri(None)
        os.environ.pop("MLFLOW_TRACKING_URI", None)


def test_a_model_loads_with_transformers_and_with_mlflow(tracker: Tracker, tmp_path: Path) -> None:
    import transformers

    write_model(tmp_path / "files" / "model")
    stage = finish_model(tracker, "sft", tmp_path / "files", "trial-sft")
    settle(tracker)
    api = client(tracker)
    model = model_of(api, stage.run_id)
    assert model is not None
    folder = Path(api.get_logged_model(model.model_id).artifact_location.removeprefix("file://"))
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    ids = tokenizer("once upon a time", return_tensors="pt").input_ids
    assert ids.tolist() == [[2, 3, 4, 5]]
    pipeline = load_with_mlflow(tracker, "models:/trial-sft/1")
    assert pipeline.tokenizer("once upon a time").input_ids == ids[0].tolist()
    assert pipeline.model(ids).logits.equal(plain(ids).logits)
    version = api.get_model_version("trial-sft", "1")
    assert version.tags["from.data"] == "d" * 32
    assert version.run_id == stage.run_id
    assert model == ModelReference(model.model_id, "trial-sft", "1")


def test_files_and_models_lie_below_the_directory_that_artifacts_names(empty_mlflow: Path, tmp_path: Path) -> None:
    share = tmp_path / "share" / "mlflow"
    where = [f"paths.root={empty_mlflow}", f"tracking.artifacts={share}", "tracking.experiment=trial"]
    tracker = Tracker.open(load_settings(["experiment=tiny", *where]), no_warning, no_warning)
    begin(tracker)
    write_model(tmp_path / "files" / "model")
    stage = finish_model(tracker, "sft", tmp_path / "files", "trial-sft")
    settle(tracker)
    tracker.mirror.stop(0.0)
    api = client(tracker)
    model = model_of(api, stage.run_id)
    assert model is not None
    places = [api.get_run(stage.run_id).info.artifact_uri, api.get_logged_model(model.model_id).artifact_location]
    folders = [Path(place.removeprefix("file://")) for place in places]
    assert all(folder.is_relative_to(share) for folder in folders)
    assert (folders[0] / "settings.json").is_file()
    assert len(list(folders[1].rglob("model.safetensors"))) == 1
    pipeline = load_with_mlflow(tracker, "models:/trial-sft/1")
    assert pipeline.tokenizer("once upon").input_ids == [2, 3]
    assert not (empty_mlflow / "artifacts").exists()


def test_a_policy_names_the_versions_it_was_made_from(tracker: Tracker, tmp_path: Path) -> None:
    f = "f" * 32
    write_config(tmp_path / "files" / "model")
    publish(tracker, start(tracker, "data"), write_data(tmp_path / "data"))
    upstream = {
        "sft": finish_model(tracker, "sft", tmp_path / "files", "trial-sft", data=f),
        "reward_model": finish_model(tracker, "reward_model", tmp_path / "files", None, data=f, sft=f),
    }
    policy = finish_model(tracker, "policy", tmp_path / "files", "trial-policy", data=f, sft=f, reward_model=f)
    settle(tracker)
    api = client(tracker)
    made = {name: model_of(api, run.run_id) for name, run in upstream.items()}
    tags = api.get_model_version("trial-policy", "1").tags
    assert (tags["from.sft"], tags["from.reward_model"]) == ("trial-sft/1", made["reward_model"].model_id)
    run = api.get_run(policy.run_id)
    assert {model.model_id for model in run.inputs.model_inputs} == {model.model_id for model in made.values()}
    assert [each.dataset.name for each in run.inputs.dataset_inputs] == ["prompts-train"]


def test_a_pointer_holds_no_weights(tracker: Tracker, tmp_path: Path) -> None:
    write_config(tmp_path / "files" / "model")
    stage = finish_model(tracker, "sft", tmp_path / "files", "trial-sft", copy=False)
    settle(tracker)
    model = model_of(client(tracker), stage.run_id)
    assert model is not None
    logged = client(tracker).get_logged_model(model.model_id)
    folder = Path(logged.artifact_location.removeprefix("file://"))
    assert sorted(file.name for file in folder.rglob("*")) == ["MLmodel", "README.md"]
    assert logged.tags["store.path"] == str(tracker.store.path("sft", "f" * 32) / "model")


CALLS = ["create_logged_model", "log_model_artifacts", "finalize_logged_model", "log_outputs", "create_model_version",
         "set_logged_model_tags", "set_terminated"]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("answered", [False, True])
def test_wherever_logging_a_model_breaks_off_it_is_made_once(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, answered: bool
) -> None:
    api, troubles = tracker.connection.client, [ConnectionError("away")]
    original = getattr(api, call)

    def breaks_off(*args: object, **options: object) -> object:
        made = original(*args, **options) if answered else None
        if troubles:
            raise troubles.pop()
        return made if answered else original(*args, **options)

    monkeypatch.setattr(api, call, breaks_off)
    write_config(tmp_path / "files" / "model")
    stage = finish_model(tracker, "sft", tmp_path / "files", "trial-sft")
    settle(tracker)
    assert troubles == []
    (version,) = client(tracker).search_model_versions("name = 'trial-sft'")
    (logged,) = client(tracker).search_logged_models([tracker.connection.experiment_id])
    assert version.source == logged.artifact_location
    assert [str(each["version"]) for each in json.loads(logged.tags[models.VERSIONS_TAG])] == ["1"]
    run = client(tracker).get_run(stage.run_id)
    assert [each.model_id for each in run.outputs.model_outputs] == [logged.model_id]
    until(lambda: client(tracker).get_run(stage.run_id).info.status == "FINISHED")
