"""MLflow: what a run leaves in the database and beside it."""

import json
import math
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow.entities import Metric

from pipelines.config import load_settings
from pipelines.tracking import StageRun, Tracker, TrackingError, metrics, processes
from pipelines.tracking.datasets import dataset_inputs
from pipelines.tracking.journal import Journal, Line, read_journal
from pipelines.tracking.models import ModelReference, model_of
from pipelines.tracking.names import flatten, safe_key
from rloo_core.settings import ExperimentSettings


@pytest.fixture
def settings(empty_mlflow: Path) -> ExperimentSettings:
    return load_settings(["experiment=tiny", f"paths.root={empty_mlflow}", "tracking.experiment=trial"])


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def tracker(settings: ExperimentSettings, warnings: list[str]) -> Iterator[Tracker]:
    tracker = Tracker.open(settings, warnings.append)
    tracker.start("name: tiny\n", ["seed=1"], [{"stage": "sft", "action": "run", "reason": "a | b"}])
    yield tracker
    tracker.finish("FINISHED")


def start(tracker: Tracker, stage: str, folder: Path) -> StageRun:
    settings = {"sft": {"epochs": 2.0, "prompt": "x" * 7000}, "odd[key]": [1, 2]}
    return tracker.start_stage(stage, "f" * 32, settings, folder / "metrics.jsonl")


def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread does."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def history(tracker: Tracker, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in tracker.connection.client.get_metric_history(run_id, key))


def test_a_run_and_its_stage(tracker: Tracker, tmp_path: Path) -> None:
    stage = start(tracker, "sft", tmp_path / "work")
    stage.metrics(1, {"loss/mean": 0.5, "kl@k=4": 1.0})
    stage.metrics(2, {"loss/mean": 0.25})
    stage.summary({"loss/mean": 0.2, "evaluation/sft/greedy/win_rate": 0.4})
    stage.finish("FINISHED")
    tracker.reused("data", "r" * 32)
    client = tracker.connection.client
    run, parent = client.get_run(stage.run_id), client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == tracker.run_id
    assert (run.data.tags["stage"], run.data.tags["fingerprint"], run.data.tags["attempt"]) == ("sft", "f" * 32, "1")
    assert run.data.params["sft.epochs"] == "2.0"
    assert run.data.params["sft.prompt"].endswith("(7000 characters, see settings.json)")
    assert history(tracker, stage.run_id, "loss/mean") == [(1, 0.5), (2, 0.25)]
    assert run.data.metrics["kl_k_4"] == 1.0
    assert run.data.metrics["summary/loss/mean"] == 0.2
    assert run.data.metrics["evaluation/sft/greedy/win_rate"] == 0.4
    assert parent.data.tags["reused.data"] == "r" * 32
    assert parent.data.tags["overrides"] == "seed=1"
    assert stage.run_id in parent.data.tags["mlflow.note.content"]
    assert {file.path for file in client.list_artifacts(tracker.run_id)} == {"config.yaml", "plan.json", "plan.md"}


def test_everything_lies_below_the_run_root(tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    start(tracker, "sft", tmp_path / "work").finish("FINISHED")
    assert list(elsewhere.iterdir()) == []
    assert (Path(tracker.settings.paths.root) / "artifacts").is_dir()


def test_a_second_table_replaces_the_first(tracker: Tracker, tmp_path: Path) -> None:
    stage = start(tracker, "sft", tmp_path / "work")
    stage.table("samples", [{"prompt": "a", "reward": 1.0}, {"prompt": "b", "reward": 2.0}])
    stage.table("samples", [{"prompt": "ü [bold]", "reward": math.nan, "new": None}])
    stage.finish("FINISHED")
    client = tracker.connection.client
    path = client.download_artifacts(stage.run_id, "tables/samples.json", str(tmp_path))
    assert json.loads(Path(path).read_text("utf-8")) == {
        "columns": ["prompt", "reward", "new"],
        "data": [["ü [bold]", "nan", None]],
    }
    assert json.loads(client.get_run(stage.run_id).data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "tables/samples.json", "type": "table"}
    ]


def test_a_resumed_stage_takes_up_its_run_and_every_step_appears_once(tracker: Tracker, tmp_path: Path) -> None:
    first = start(tracker, "sft", tmp_path / "work")
    for step in (1, 2, 3):
        first.metrics(step, {"loss": float(step)})
    first.finish("KILLED")
    with (tmp_path / "work" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "values": {"loss": 4.0}, "time": 1}\n{"step": 5, "val')  # not sent, torn
    second = start(tracker, "sft", tmp_path / "work")
    for step in (3, 4, 5):
        second.metrics(step, {"loss": float(step)})
    second.finish("FINISHED")
    assert second.run_id == first.run_id
    assert history(tracker, first.run_id, "loss") == [(step, float(step)) for step in (1, 2, 3, 4, 5)]
    run = tracker.connection.client.get_run(first.run_id)
    assert (run.info.status, run.data.tags["attempt"]) == ("FINISHED", "2")
    assert [line.step for line in read_journal(tmp_path / "work" / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def forget_latest(tracker: Tracker) -> None:
    """As after a crash between MLflow's two tables: every value is in the histories, none among the latest."""
    with sqlite3.connect(tracker.connection.uri.removeprefix("sqlite:///")) as database:
        database.execute("DELETE FROM latest_metrics")


@pytest.mark.parametrize("curve", [{}, {"loss": 1.0}])
def test_a_summary_that_a_killed_attempt_sent_is_not_sent_again(
    tracker: Tracker, tmp_path: Path, curve: dict[str, float]
) -> None:
    for value in (0.25, 0.5):
        stage = start(tracker, "sft", tmp_path / "work")
        if curve:
            stage.metrics(1, curve)
        stage.summary({"win_rate": value, "loss": value})
        stage.finish("KILLED")
        forget_latest(tracker)
    assert history(tracker, stage.run_id, "win_rate") == [(0, 0.25)]
    assert history(tracker, stage.run_id, "summary/loss" if curve else "loss") == [(0, 0.25)]
    assert history(tracker, stage.run_id, "summary/win_rate") == []


def test_what_mlflow_has_is_asked_until_it_answers(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(tracker, "sft", tmp_path / "work")
    first.metrics(1, {"loss": 1.0})
    first.finish("KILLED")
    ask, failures = tracker.connection.client.get_metric_history, [ConnectionError("away"), ConnectionError("away")]

    def unreliable(run_id: str, key: str) -> object:
        if failures:
            raise failures.pop()
        return ask(run_id, key)

    monkeypatch.setattr(tracker.connection.client, "get_metric_history", unreliable)
    monkeypatch.setattr(metrics, "EVERY_SECONDS", 0.01)
    second = start(tracker, "sft", tmp_path / "work")
    second.metrics(1, {"loss": 1.0})
    second.metrics(2, {"loss": 2.0})
    until(lambda: not failures)
    second.finish("FINISHED")
    assert history(tracker, first.run_id, "loss") == [(1, 1.0), (2, 2.0)]


def test_without_an_answer_nothing_is_sent_twice(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(tracker, "sft", tmp_path / "work")
    first.metrics(1, {"loss": 1.0})
    first.finish("KILLED")
    with monkeypatch.context() as patch:
        patch.setattr(tracker.connection.client, "get_metric_history", lambda *_: 1 / 0)
        second = start(tracker, "sft", tmp_path / "work")
        second.metrics(1, {"loss": 1.5})
        second.finish("FINISHED")
    assert history(tracker, first.run_id, "loss") == [(1, 1.0)]
    assert tracker.connection.client.get_run(first.run_id).data.tags["metrics.not_sent"] == "1"


def test_a_call_that_failed_after_it_had_written_is_not_repeated(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = tracker.connection.client.log_batch, [ConnectionError("the answer is lost")]

    def lossy(run_id: str, metrics: list[Metric]) -> None:
        send(run_id, metrics=[Metric(m.key, m.value, m.timestamp + 1, m.step) for m in metrics])
        if failures:
            raise failures.pop()

    stage = start(tracker, "sft", tmp_path / "work")
    monkeypatch.setattr(tracker.connection.client, "log_batch", lossy)
    stage.metrics(1, {"loss": 1.0})
    stage.finish("FINISHED")
    assert failures == []
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0)]


def test_a_run_deleted_in_mlflow_is_not_taken_up(tracker: Tracker, tmp_path: Path) -> None:
    first = start(tracker, "sft", tmp_path / "work")
    first.metrics(1, {"loss": 1.0})
    first.finish("KILLED")
    tracker.connection.client.delete_run(first.run_id)
    second = start(tracker, "sft", tmp_path / "work")
    second.finish("FINISHED")
    assert second.run_id != first.run_id
    assert history(tracker, second.run_id, "loss") == [(1, 1.0)]


def test_the_later_line_of_a_step_wins(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    for line in (Line(1, {"a": 1.0, "b": math.inf}, 10), Line(2, {"a": 2.0}, 20), Line(1, {"a": 3.0}, 30)):
        journal.write(line)
    journal.close()
    assert read_journal(journal.path) == [Line(1, {"a": 3.0, "b": math.inf}, 30), Line(2, {"a": 2.0}, 20)]


def test_infinite_metrics_are_sent_as_nan(tracker: Tracker, tmp_path: Path) -> None:
    stage = start(tracker, "sft", tmp_path / "work")
    stage.metrics(1, {"loss": math.inf})
    stage.finish("FINISHED")
    assert math.isnan(history(tracker, stage.run_id, "loss")[0][1])


def test_a_failing_mlflow_never_fails_the_training(
    tracker: Tracker, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = start(tracker, "sft", tmp_path / "work")

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("the server is away")

    for name in ("log_batch", "log_text", "set_tag", "log_figure", "create_logged_model"):
        monkeypatch.setattr(tracker.connection.client, name, away)
    for step in range(1000):
        stage.metrics(step, {"loss": 1.0})
    stage.table("samples", [{"a": 1}])
    assert stage.model(tmp_path, tmp_path, {}, {}, copy=True, name="m") is None
    stage.finish("FINISHED")
    assert len(warnings) == 1
    assert "the server is away" in warnings[0]
    assert len(read_journal(tmp_path / "work" / "metrics.jsonl")) == 1000


def test_mlflow_that_cannot_be_opened_is_one_clear_error(settings: ExperimentSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    tracking = settings.tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/file/mlflow.db"})
    with pytest.raises(TrackingError, match=r"file/mlflow\.db cannot be used: .* tracking\.uri"):
        Tracker.open(settings.model_copy(update={"tracking": tracking}), pytest.fail)


def test_runs_of_dead_processes_are_ended(settings: ExperimentSettings, tracker: Tracker) -> None:
    client = tracker.connection.client
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    tags = {**processes.identity(), "process.pid": str(child.pid)}
    child.wait()
    dead = client.create_run(tracker.connection.experiment_id, tags=tags).info.run_id
    foreign = client.create_run(
        tracker.connection.experiment_id, tags={**tags, "process.host": "elsewhere"}
    ).info.run_id
    recycled = client.create_run(
        tracker.connection.experiment_id, tags={**processes.identity(), "process.start": "before"}
    ).info.run_id
    Tracker.open(settings, pytest.fail)
    status = {run_id: client.get_run(run_id).info.status for run_id in (dead, foreign, recycled, tracker.run_id)}
    assert status == {dead: "KILLED", foreign: "RUNNING", recycled: "KILLED", tracker.run_id: "RUNNING"}


def test_a_foreign_active_run_is_left_alone(tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    stage = start(tracker, "sft", tmp_path / "work")
    stage.metrics(1, {"loss": 1.0})
    stage.finish("FINISHED")
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0)]
    assert os.environ["MLFLOW_RUN_ID"] == "0" * 32


def write_data(folder: Path) -> Path:
    folder.mkdir(parents=True)
    names = [f"{kind}-{split}" for kind in ("prompts", "demonstrations", "preferences") for split in ("train", "test")]
    tables = {name: {"rows": 10, "sha256": format(index, "x") * 64} for index, name in enumerate(names)}
    (folder / "dataset.json").write_text(json.dumps({"source": "synthetic", "tables": tables}))
    return folder


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


def write_model(folder: Path, head: str = "ForCausalLM") -> Path:
    """A tiny random model with a tokenizer of a few words, without any network."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, "once": 2, "upon": 3, "a": 4, "time": 5}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
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


def test_a_model_loads_with_transformers_and_with_mlflow(tracker: Tracker, tmp_path: Path) -> None:
    import mlflow
    import transformers

    directory = write_model(tmp_path / "work" / "model")
    stage = start(tracker, "sft", tmp_path / "work")
    started = time.monotonic()
    model = stage.model(directory, tmp_path, {}, {"from.data": "d" * 32}, copy=True, name="trial-sft")
    assert time.monotonic() - started < 2.0
    stage.finish("FINISHED")
    assert model is not None
    client = tracker.connection.client
    folder = Path(client.get_logged_model(model.model_id).artifact_location.removeprefix("file://"))
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    ids = tokenizer("once upon a time", return_tensors="pt").input_ids
    assert ids.tolist() == [[2, 3, 4, 5]]
    mlflow.set_tracking_uri(tracker.connection.uri)
    try:
        pipeline = mlflow.transformers.load_model("models:/trial-sft/1")
    finally:
        mlflow.set_tracking_uri(None)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
    assert pipeline.tokenizer("once upon a time").input_ids == ids[0].tolist()
    assert pipeline.model(ids).logits.equal(plain(ids).logits)
    version = client.get_model_version("trial-sft", "1")
    assert version.tags["from.data"] == "d" * 32
    assert version.run_id == stage.run_id
    assert model_of(client, stage.run_id) == ModelReference(model.model_id, "trial-sft", "1")


def test_a_policy_names_the_versions_it_was_made_from(tracker: Tracker, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text('{"architectures": ["GPTNeoXForCausalLM"], "dtype": "float32"}')
    data = write_data(tmp_path / "data")
    upstream = {}
    for name in ("sft", "reward_model"):
        stage = start(tracker, name, tmp_path / name)
        stage.model(directory, tmp_path, {}, {}, copy=True, name=f"trial-{name}" if name == "sft" else None)
        stage.finish("FINISHED")
        upstream[name] = stage.run_id
    policy = start(tracker, "policy", tmp_path / "policy")
    policy.lineage(data, upstream)
    policy.model(directory, tmp_path, upstream, {}, copy=True, name="trial-policy")
    policy.finish("FINISHED")
    client = tracker.connection.client
    models = {name: model_of(client, run_id) for name, run_id in upstream.items()}
    tags = client.get_model_version("trial-policy", "1").tags
    assert (tags["from.sft"], tags["from.reward_model"]) == ("trial-sft/1", models["reward_model"].model_id)
    run = client.get_run(policy.run_id)
    assert {model.model_id for model in run.inputs.model_inputs} == {model.model_id for model in models.values()}
    assert [each.dataset.name for each in run.inputs.dataset_inputs] == ["prompts-train"]


def test_a_pointer_holds_no_weights(tracker: Tracker, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model.safetensors").write_bytes(b"weights")
    stage = start(tracker, "sft", tmp_path / "work")
    model = stage.model(directory, tmp_path / "store" / "model", {}, {}, copy=False, name="trial-sft")
    stage.finish("FINISHED")
    assert model is not None
    logged = tracker.connection.client.get_logged_model(model.model_id)
    folder = Path(logged.artifact_location.removeprefix("file://"))
    assert [file.name for file in folder.rglob("*")] == ["MLmodel"]
    assert logged.tags["store.path"] == str(tmp_path / "store" / "model")


def test_names_that_mlflow_refuses_are_changed() -> None:
    assert safe_key("kl@k=4 [a]") == "kl_k_4 _a_"
    assert flatten({"a": {"b": 1e-5, "c": {}}, "d": None}) == {"a.b": "1e-05", "a.c": "{}", "d": "null"}
