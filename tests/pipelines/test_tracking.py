"""MLflow: what a run leaves behind, also when MLflow is away, and when somebody deletes things."""

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException
from omegaconf import OmegaConf

from pipelines import processes
from pipelines.config import load_settings, to_yaml
from pipelines.tracking import Tracker, TrackingError, mirror
from pipelines.tracking.connection import open_client
from pipelines.tracking.journal import Journal, Line, read_journal
from pipelines.tracking.metrics import MetricQueue
from pipelines.tracking.names import Names, flatten, safe_key
from rloo_core.settings import ExperimentSettings, RewardSettings, RewardTerm
from tests.pipelines.trackers import begin, by_stage, client, history, no_warning, publish, quiet, settle, start, until

F = "f" * 32


@pytest.fixture
def settings(empty_mlflow: Path) -> ExperimentSettings:
    return load_settings(["experiment=tiny", f"paths.root={empty_mlflow}", "tracking.experiment=trial"])


@pytest.fixture
def told() -> list[str]:
    """What a person was told."""
    return []


@pytest.fixture
def tracker(settings: ExperimentSettings, told: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    monkeypatch.setattr(mirror, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(mirror, "PAUSES", (0.05,))
    tracker = Tracker.open(settings, told.append, told.append)
    begin(tracker)
    yield tracker
    tracker.mirror.stop(0.0)


def again(settings: ExperimentSettings, told: list[str]) -> Tracker:
    """The tracker of a later run, with its parent run open."""
    later = Tracker.open(settings, told.append, told.append)
    begin(later)
    return later


def die(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """End the mirror without a word, and let whoever looks next believe that this process is dead."""
    tracker.mirror.stop(0.0)
    tracker.mirror._thread.join(60)
    for file in [*tracker.store.root.rglob("run.json"), *(tracker.store.root / "tracking").glob("*.json")]:
        file.write_text(file.read_text().replace(str(os.getpid()), "4194399"))


CALLS = (
    "log_batch", "log_artifact", "create_run", "search_runs", "get_run", "set_terminated", "get_experiment_by_name",
    "get_metric_history", "update_run", "log_inputs", "create_logged_model", "search_logged_models",
)  # fmt: skip


class Outage:
    """While it lasts, every call of the tracker's client fails."""

    def __init__(self, tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on, self.calls = True, 0
        api = tracker.connection.client
        for name in CALLS:
            monkeypatch.setattr(api, name, self._unreliable(getattr(api, name)))

    def _unreliable(self, call: Any) -> Any:
        def attempt(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.on:
                raise ConnectionError("the server is away")
            return call(*args, **options)

        return attempt


def test_a_run_and_its_stage(tracker: Tracker, told: list[str]) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss/mean": 0.5, "kl@k=4": 1.0})
    stage.metrics(2, {"loss/mean": 0.25})
    stage.summary({"loss/mean": 0.2, "evaluation/sft/greedy/win_rate": 0.4})
    publish(tracker, stage)
    settle(tracker)
    tracker.result({"win_rate": 0.75})
    tracker.finish("FINISHED")
    api = client(tracker)
    run, parent = api.get_run(stage.run_id), api.get_run(tracker.run_id)
    assert (run.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert run.data.tags["mlflow.parentRunId"] == tracker.run_id
    assert (run.data.tags["stage"], run.data.tags["fingerprint"], run.data.tags["attempt"]) == ("sft", F, "1")
    assert run.data.params["sft.epochs"] == "2.0"
    assert run.data.params["sft.prompt"].endswith("(7000 characters, see settings.json)")
    complete = Path(api.download_artifacts(stage.run_id, "settings.json", str(tracker.store.root)))
    assert json.loads(complete.read_text())["sft"]["prompt"] == "x" * 7000
    assert history(tracker, stage.run_id, "loss/mean") == [(1, 0.5), (2, 0.25)]
    assert run.data.metrics["kl_k_4"] == 1.0
    assert run.data.metrics["summary/loss/mean"] == 0.2
    assert run.data.metrics["evaluation/sft/greedy/win_rate"] == 0.4
    assert parent.data.metrics == {"win_rate": 0.75}
    assert parent.data.tags["overrides"] == "seed=1"
    assert stage.run_id in parent.data.tags["mlflow.note.content"]
    files = {file.path for file in api.list_artifacts(tracker.run_id)}
    assert files == {"config.yaml", "plan.json", "plan.md", "settings.json"}
    assert told == []


def test_what_is_written_during_a_pass_that_sees_the_end_is_sent(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, api = start(tracker, "sft"), tracker.connection.client
    until(lambda: bool(stage.run_id))
    log_batch = api.log_batch

    def slow(run_id: str, metrics: list[Metric] = (), **rest: Any) -> None:  # type: ignore[assignment]
        if metrics and stage.evidence.state.is_open:  # this pass has sent the files already
            stage.table("late", [{"a": 1}])
            publish(tracker, stage)
        log_batch(run_id, metrics=metrics, **rest)

    monkeypatch.setattr(api, "log_batch", slow)
    stage.metrics(1, {"loss": 1.0})
    until(lambda: not stage.evidence.state.is_open)
    settle(tracker)
    assert [file.path for file in client(tracker).list_artifacts(stage.run_id, "tables")] == ["tables/late.json"]
    assert client(tracker).get_run(stage.run_id).info.status == "FINISHED"


def test_everything_lies_below_the_run_root(tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    publish(tracker, start(tracker, "sft"))
    settle(tracker)
    assert list(elsewhere.iterdir()) == []
    assert (Path(tracker.settings.paths.root) / "artifacts").is_dir()


def test_a_second_table_replaces_the_first(tracker: Tracker, tmp_path: Path) -> None:
    stage = start(tracker, "sft")
    stage.table("samples", [{"prompt": "a", "reward": 1.0}, {"prompt": "b", "reward": 2.0}])
    until(lambda: bool(stage.run_id))
    until(lambda: "mlflow.loggedArtifacts" in client(tracker).get_run(stage.run_id).data.tags)
    stage.table("samples", [{"prompt": "ü [bold]", "reward": math.nan, "new": None}])
    publish(tracker, stage)
    settle(tracker)
    api = client(tracker)
    path = api.download_artifacts(stage.run_id, "tables/samples.json", str(tmp_path))
    assert json.loads(Path(path).read_text("utf-8")) == {
        "columns": ["prompt", "reward", "new"],
        "data": [["ü [bold]", "nan", None]],
    }
    assert json.loads(api.get_run(stage.run_id).data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "tables/samples.json", "type": "table"}
    ]


def test_a_resumed_stage_takes_up_its_run_and_every_step_appears_once(tracker: Tracker) -> None:
    first = start(tracker, "sft")
    for step in (1, 2, 3):
        first.metrics(step, {"loss": float(step)})
    first.finish("KILLED")
    settle(tracker)
    journal = tracker.store.work("sft", F) / "logs" / "metrics.jsonl"
    with journal.open("a") as file:
        file.write('{"step": 4, "values": {"loss": 4.0}, "time": 1}\n{"step": 5, "val')  # not sent, torn
    second = start(tracker, "sft")
    for step in (3, 4, 5):
        second.metrics(step, {"loss": float(step)})
    publish(tracker, second)
    settle(tracker)
    assert second.run_id == first.run_id
    assert history(tracker, first.run_id, "loss") == [(step, float(step)) for step in (1, 2, 3, 4, 5)]
    run = client(tracker).get_run(first.run_id)
    assert (run.info.status, run.data.tags["attempt"]) == ("FINISHED", "2")
    lines = read_journal(tracker.store.path("sft", F) / "logs" / "metrics.jsonl")
    assert [line.step for line in lines] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("curve", [{}, {"loss": 1.0}])
def test_a_summary_that_a_killed_attempt_sent_is_not_sent_again(tracker: Tracker, curve: dict[str, float]) -> None:
    for value in (0.25, 0.5):
        stage = start(tracker, "sft")
        if curve:
            stage.metrics(1, curve)
        stage.summary({"win_rate": value, "loss": value})
        stage.finish("KILLED")
        settle(tracker)
        with sqlite3.connect(tracker.connection.uri.removeprefix("sqlite:///")) as database:
            database.execute("DELETE FROM latest_metrics")  # as after a crash between MLflow's two tables
    assert history(tracker, stage.run_id, "win_rate") == [(0, 0.25)]
    assert history(tracker, stage.run_id, "summary/loss" if curve else "loss") == [(0, 0.25)]
    assert history(tracker, stage.run_id, "summary/win_rate") == []


def test_a_call_that_failed_after_it_had_written_is_not_repeated(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = tracker.connection.client.log_batch, [ConnectionError("the answer is lost")]

    def lossy(run_id: str, metrics: list[Metric] = (), **rest: Any) -> None:  # type: ignore[assignment]
        send(run_id, metrics=[Metric(m.key, m.value, m.timestamp + 1, m.step) for m in metrics], **rest)
        if failures and metrics:
            raise failures.pop()

    stage = start(tracker, "sft")
    monkeypatch.setattr(tracker.connection.client, "log_batch", lossy)
    stage.metrics(1, {"loss": 1.0})
    publish(tracker, stage)
    settle(tracker)
    assert failures == []
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0)]


def test_a_created_run_whose_answer_is_lost_is_not_made_twice(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, failures = tracker.connection.client.create_run, [ConnectionError("the answer is lost")]

    def lossy(*args: Any, **rest: Any) -> Any:
        made = create(*args, **rest)
        if failures:
            raise failures.pop()
        return made

    monkeypatch.setattr(tracker.connection.client, "create_run", lossy)
    publish(tracker, start(tracker, "sft"))
    settle(tracker)
    assert failures == []
    assert by_stage(tracker)["sft"] == ["FINISHED"]


def test_an_outage_loses_nothing_and_stalls_nothing(
    tracker: Tracker, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: bool(tracker.run_id))
    outage = Outage(tracker, monkeypatch)
    stage = start(tracker, "sft")
    for step in range(1, 1001):
        stage.metrics(step, {"loss": 1 / step})
    stage.table("samples", [{"a": 1}])
    stage.summary({"final": 1.0})
    publish(tracker, stage)
    until(lambda: bool(told))
    assert "MLflow does not answer, and the run goes on without" in told[0]
    assert stage.run_id == ""
    assert tracker.store.manifest("sft", F).run_id is None
    outage.on = False
    settle(tracker)
    run = client(tracker).get_run(stage.run_id)
    assert (run.info.status, run.data.metrics["final"]) == ("FINISHED", 1.0)
    assert run.info.end_time == stage.evidence.state.ended
    assert len(history(tracker, stage.run_id, "loss")) == 1000
    assert {file.path for file in client(tracker).list_artifacts(stage.run_id)} == {"settings.json", "tables"}
    assert tracker.store.manifest("sft", F).run_id == stage.run_id
    until(lambda: told[1:] == ["MLflow answers again; what it missed has been sent"])


def test_what_is_left_at_the_end_is_sent_at_the_next_start(
    settings: ExperimentSettings, tracker: Tracker, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": 1.0})
    until(lambda: bool(stage.run_id) and bool(history(tracker, stage.run_id, "loss")))
    outage = Outage(tracker, monkeypatch)
    stage.metrics(2, {"loss": 0.5})
    publish(tracker, stage)
    monkeypatch.setitem(sys.modules["pipelines.tracking.tracker"].PATIENCE, "FINISHED", 0.2)
    until(lambda: outage.calls > 0)
    tracker.finish("FINISHED")
    assert "MLflow has not got everything of 2 runs" in told[-1]
    assert by_stage(tracker) == {"sft": ["RUNNING"], "": ["RUNNING"]}
    die(tracker, monkeypatch)
    later = Tracker.open(settings, no_warning, quiet)
    settle(later)
    later.mirror.stop(0.0)
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0), (2, 0.5)]
    assert by_stage(tracker) == {"sft": ["FINISHED"], "": ["FINISHED"]}
    assert list((tracker.store.root / "tracking").iterdir()) == []


@pytest.mark.parametrize("published", [True, False])
def test_a_dead_process_leaves_finished_what_it_published_and_killed_what_it_did_not(
    settings: ExperimentSettings, tracker: Tracker, published: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": 1.0})
    until(lambda: bool(stage.run_id))
    if published:
        with monkeypatch.context() as patch:  # killed right after the rename
            patch.setattr(stage, "finish", lambda *_, **__: None)
            publish(tracker, stage)
    die(tracker, monkeypatch)
    later = Tracker.open(settings, no_warning, quiet)
    settle(later)
    later.mirror.stop(0.0)
    assert by_stage(tracker) == {"sft": ["FINISHED" if published else "KILLED"], "": ["KILLED"]}
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0)]


def of_tracking(settings: ExperimentSettings, **changes: str) -> ExperimentSettings:
    return settings.model_copy(update={"tracking": settings.tracking.model_copy(update=changes)})


def test_what_a_dead_process_left_goes_to_its_own_experiment(
    settings: ExperimentSettings, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = start(tracker, "sft")
    until(lambda: bool(stage.run_id))
    stage.metrics(1, {"loss": 1.0})
    die(tracker, monkeypatch)
    later = Tracker.open(of_tracking(settings, experiment="another"), no_warning, quiet)
    settle(later)
    later.mirror.stop(0.0)
    assert by_stage(tracker) == {"sft": ["KILLED"], "": ["KILLED"]}
    assert by_stage(later) == {}
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0)]


def test_what_a_dead_process_left_for_another_mlflow_waits_for_it(
    settings: ExperimentSettings, tracker: Tracker, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = start(tracker, "sft")
    until(lambda: bool(stage.run_id))
    with monkeypatch.context() as patch:  # killed right after the rename
        patch.setattr(stage, "finish", lambda *_, **__: None)
        publish(tracker, stage)
    die(tracker, monkeypatch)
    other = Tracker.open(of_tracking(settings, uri=f"sqlite:///{tmp_path}/other.db"), no_warning, told.append)
    begin(other)
    manifest = other.store.manifest("sft", F)
    assert manifest is not None
    other.reused(manifest)
    other.finish("FINISHED")
    assert by_stage(other) == {"": ["FINISHED"]}
    assert told == [
        f"what earlier runs left for another MLflow (that of {tracker.store.root}) waits for `rloo sync` with its "
        f"tracking.uri"
    ]
    later = Tracker.open(settings, no_warning, quiet)
    settle(later)
    later.mirror.stop(0.0)
    assert by_stage(tracker) == {"sft": ["FINISHED"], "": ["KILLED"]}


def test_a_run_that_another_process_goes_on_with_is_its_own_again(
    settings: ExperimentSettings, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage is retried in the moment in which what its killed attempt left is being sent."""
    stage = start(tracker, "sft")
    until(lambda: bool(stage.run_id))
    die(tracker, monkeypatch)
    late = mirror.Mirror(tracker.connection, tracker.store, quiet)
    late.adopt()
    copy = next(each for each in late._copies if each.evidence.state.stage)
    retried = copy.evidence.load(tracker.store.root, copy.evidence.directory)
    assert retried is not None
    living = {
        **processes.identity(),
        "process.pid": str(os.getppid()),
        "process.start": processes.start_time(os.getppid()),
    }
    with monkeypatch.context() as other:
        other.setattr("pipelines.evidence.identity", lambda: living)
        retried.take_up("parent")
        retried.begin()
    written = {file: file.read_bytes() for file in (retried.directory / "run.json", retried._pending)}
    assert copy.update()
    copy.evidence.delivered()
    assert {file: file.read_bytes() for file in written} == written


def test_a_run_deleted_while_it_runs_is_restored_and_said(tracker: Tracker, told: list[str]) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": 1.0})
    until(lambda: bool(stage.run_id) and bool(history(tracker, stage.run_id, "loss")))
    client(tracker).delete_run(stage.run_id)
    stage.metrics(2, {"loss": 2.0})
    publish(tracker, stage)
    settle(tracker)
    run = client(tracker).get_run(stage.run_id)
    assert (run.info.lifecycle_stage, run.info.status) == ("active", "FINISHED")
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0), (2, 2.0)]
    assert told == [f"the run of sft ({stage.run_id}) had been deleted in MLflow, and was restored"]


def test_an_experiment_deleted_while_it_is_used_is_restored_and_said(tracker: Tracker, told: list[str]) -> None:
    stage = start(tracker, "sft")
    until(lambda: bool(stage.run_id))
    client(tracker).delete_experiment(tracker.connection.experiment_id)
    stage.metrics(1, {"loss": 1.0})
    publish(tracker, stage)
    settle(tracker)
    assert by_stage(tracker) == {"sft": ["FINISHED"], "": ["RUNNING"]}
    assert any("experiment 'trial' had been deleted" in text for text in told)


def test_an_experiment_deleted_between_runs_is_restored(settings: ExperimentSettings, tracker: Tracker) -> None:
    client(tracker).delete_experiment(tracker.connection.experiment_id)
    told: list[str] = []
    Tracker.open(settings, told.append, quiet).mirror.stop(0.0)
    assert told == ["the experiment 'trial' had been deleted in MLflow, and was restored with its runs"]


def remove_for_good(tracker: Tracker, run_id: str) -> None:
    """What `mlflow gc` does."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    client(tracker).delete_run(run_id)
    SqlAlchemyStore(tracker.connection.uri, str(tracker.store.root / "artifacts"))._hard_delete_run(run_id)


@pytest.mark.parametrize("gone", ["deleted", "removed", "there"])
def test_the_run_of_a_reused_stage_is_brought_back(
    settings: ExperimentSettings, tracker: Tracker, told: list[str], gone: str
) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": 1.0})
    stage.table("samples", [{"a": 1}])
    publish(tracker, stage)
    settle(tracker)
    tracker.finish("FINISHED")
    if gone == "deleted":
        client(tracker).delete_run(stage.run_id)
    elif gone == "removed":
        remove_for_good(tracker, stage.run_id)
    later = again(settings, told)
    later.reused(later.store.manifest("sft", F))
    settle(later)
    later.finish("FINISHED")
    run_id = tracker.store.manifest("sft", F).run_id
    run = client(tracker).get_run(run_id)
    assert (run.info.status, run.info.lifecycle_stage) == ("FINISHED", "active")
    assert (run_id == stage.run_id) == (gone != "removed")
    assert history(tracker, run_id, "loss") == [(1, 1.0)]
    assert {file.path for file in client(tracker).list_artifacts(run_id)} == {"settings.json", "tables"}
    assert client(tracker).get_run(later.run_id).data.tags["reused.sft"] == run_id
    said = {"deleted": ["and was restored"], "removed": ["logged again from the store"], "there": []}
    assert [any(text in line for line in told) for text in said[gone]] == [True] * len(told)


def test_a_run_removed_for_good_while_it_runs_is_logged_again(tracker: Tracker, told: list[str]) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": 1.0})
    until(lambda: bool(stage.run_id) and bool(history(tracker, stage.run_id, "loss")))
    first = stage.run_id
    remove_for_good(tracker, first)
    stage.metrics(2, {"loss": 2.0})
    publish(tracker, stage)
    settle(tracker)
    assert stage.run_id != first
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0), (2, 2.0)]
    assert client(tracker).get_run(stage.run_id).data.params["sft.epochs"] == "2.0"
    assert told == [f"the run of sft ({first}) had been removed from MLflow for good, and is logged again"]


def test_a_step_reported_while_the_journal_is_read_again_is_not_lost() -> None:
    queue = MetricQueue(resumed=False)

    def read() -> list[Line]:
        queue.add(Line(2, {"loss": 2.0}, 20))  # the training's thread
        return [Line(1, {"loss": 1.0}, 10)]

    queue.refill(read)
    assert len(queue) == 2


def test_what_mlflow_refuses_is_told_and_the_rest_goes_on(
    tracker: Tracker, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("too long\nfor us", error_code=1000)  # INVALID_PARAMETER_VALUE

    stage = start(tracker, "sft")
    until(lambda: bool(stage.run_id))
    monkeypatch.setattr(tracker.connection.client, "log_artifact", refuse)
    stage.table("samples", [{"a": 1}])
    publish(tracker, stage)
    settle(tracker)
    assert client(tracker).get_run(stage.run_id).info.status == "FINISHED"
    assert "MLflow refused to log tables/samples.json of sft: too long" in told


def test_the_later_line_of_a_step_wins(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "metrics.jsonl")
    for line in (Line(1, {"a": 1.0, "b": math.inf}, 10), Line(2, {"a": 2.0}, 20), Line(1, {"a": 3.0}, 30)):
        journal.write(line)
    journal.close()
    assert read_journal(journal.path) == [Line(1, {"a": 3.0, "b": math.inf}, 30), Line(2, {"a": 2.0}, 20)]


def test_infinite_metrics_are_sent_as_nan(tracker: Tracker) -> None:
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": math.inf})
    publish(tracker, stage)
    settle(tracker)
    assert math.isnan(history(tracker, stage.run_id, "loss")[0][1])


def test_mlflow_that_cannot_be_opened_is_one_clear_error(settings: ExperimentSettings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    tracking = settings.tracking.model_copy(update={"uri": f"sqlite:///{tmp_path}/file/mlflow.db"})
    with pytest.raises(TrackingError, match=r"file/mlflow\.db cannot be used: .* tracking\.uri"):
        Tracker.open(settings.model_copy(update={"tracking": tracking}), no_warning, quiet)


def test_a_database_whose_first_migration_was_killed_is_none(tmp_path: Path) -> None:
    """It appears complete or not at all; a child is killed in the middle of MLflow's migrations."""
    program = """
        import os, signal, sys
        from pathlib import Path
        import mlflow.store.db.utils as utils
        from pipelines.tracking.connection import open_client
        def broken(engine):
            with engine.begin() as connection:
                connection.exec_driver_sql("CREATE TABLE _alembic_tmp_experiments (a)")
            os.kill(os.getpid(), signal.SIGKILL)
        utils._upgrade_db = broken
        open_client("sqlite:///" + sys.argv[1] + "/mlflow.db", Path(sys.argv[1]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "mlflow.db").exists()
    client = open_client(f"sqlite:///{tmp_path}/mlflow.db", tmp_path)
    assert [each.name for each in client.search_experiments()] == ["Default"]
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_runs_of_dead_processes_are_ended(settings: ExperimentSettings, tracker: Tracker) -> None:
    until(lambda: bool(tracker.run_id))
    api = client(tracker)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    tags = {**processes.identity(), "process.pid": str(child.pid)}
    child.wait()
    experiment = tracker.connection.experiment_id
    dead = api.create_run(experiment, tags=tags).info.run_id
    foreign = api.create_run(experiment, tags={**tags, "process.host": "elsewhere"}).info.run_id
    recycled = api.create_run(experiment, tags={**processes.identity(), "process.start": "before"}).info.run_id
    Tracker.open(settings, no_warning, quiet).mirror.stop(0.0)
    status = {run_id: api.get_run(run_id).info.status for run_id in (dead, foreign, recycled, tracker.run_id)}
    assert status == {dead: "KILLED", foreign: "RUNNING", recycled: "KILLED", tracker.run_id: "RUNNING"}


def test_a_foreign_active_run_is_left_alone(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    stage = start(tracker, "sft")
    stage.metrics(1, {"loss": 1.0})
    publish(tracker, stage)
    settle(tracker)
    assert history(tracker, stage.run_id, "loss") == [(1, 1.0)]
    assert os.environ["MLFLOW_RUN_ID"] == "0" * 32


def test_a_long_setting_is_whole_in_the_files_and_cut_in_the_parameters_which_is_said(
    settings: ExperimentSettings, told: list[str]
) -> None:
    """A reward function that asks a model with a long prompt."""
    prompt = "Which of the two keeps what matters?\n" * 190
    term = RewardTerm(function="mine:judged", arguments={"prompt": prompt})
    settings = settings.model_copy(update={"reward": RewardSettings(terms=(term,))})
    tracker = Tracker.open(settings, told.append, no_warning)
    tracker.start(to_yaml(settings), {"overrides": []}, [])
    values = settings.reward.model_dump(mode="json")
    stage = tracker.start_stage("policy", F, {"reward": values}, tracker.store.work("policy", F), {})
    publish(tracker, stage)
    settle(tracker)
    tracker.mirror.stop(0.0)
    length = len(json.dumps(values["terms"]))
    assert len(prompt) > 7000
    assert told == [
        f"reward.terms has {length} characters; MLflow's parameters show its beginning, the run's config.yaml all of it"
    ]
    shown = client(tracker).get_run(stage.run_id).data.params["reward.terms"]
    note = f"… ({length} characters, see settings.json)"
    assert shown == json.dumps(values["terms"])[: 500 - len(note)] + note
    assert json.loads(kept(tracker, stage.run_id, "settings.json")) == {"reward": values}
    config = OmegaConf.create(kept(tracker, tracker.run_id, "config.yaml"))
    assert config.reward.terms[0].arguments.prompt == prompt


def test_more_settings_than_mlflow_takes_at_a_time_are_all_parameters(tracker: Tracker, told: list[str]) -> None:
    values = {f"setting_{i}": i for i in range(300)}  # a call takes 100
    stage = tracker.start_stage("sft", F, {"sft": values}, tracker.store.work("sft", F), {})
    publish(tracker, stage)
    settle(tracker)
    shown = client(tracker).get_run(stage.run_id).data.params
    assert shown == {f"sft.{name}": str(value) for name, value in values.items()}
    assert told == []


def kept(tracker: Tracker, run_id: str, name: str) -> str:
    """The text of an artifact in MLflow."""
    folder = client(tracker).get_run(run_id).info.artifact_uri.removeprefix("file://")
    return (Path(folder) / name).read_text()


def test_names_that_mlflow_refuses_are_changed_and_stay_apart() -> None:
    assert safe_key("kl@k=4 [a]") == "kl_k_4 _a_"
    assert flatten({"a": {"b": 1e-5, "c": {}}, "d": None}) == {"a.b": "1e-05", "a.c": "{}", "d": "null"}
    names = Names()
    first, second = names.safe("kl[a]"), names.safe("kl(a)")
    assert first == "kl_a_"
    assert second.startswith("kl_a__")
    assert second != first
    assert (names.safe("kl[a]"), names.safe("kl(a)")) == (first, second)
    long = [names.safe("x" * 300), names.safe("x" * 299 + "y")]
    assert len({*long}) == 2
    assert max(map(len, long)) <= 250
