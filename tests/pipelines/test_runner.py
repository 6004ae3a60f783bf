"""A whole run with stages that do next to nothing: reuse, errors, signals, crashes, and what MLflow says afterwards."""

import errno
import fcntl
import io
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from rich.console import Console as RichConsole

from pipelines import fingerprint, processes, runner
from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.console import Console
from pipelines.plan import Selection, make_plan
from pipelines.records import Record, find_record, left_of, records, to_resume
from pipelines.store import Manifest, Store
from pipelines.tracking.tracker import PATIENCE
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES
from tests.pipelines import fake_stages
from tests.pipelines.conftest import install_fake_stages

ALL = list(STAGES)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_mlflow: Path) -> Iterator[ExperimentSettings]:
    install_fake_stages(monkeypatch)
    monkeypatch.setitem(PATIENCE, "KILLED", 120.0)  # a slow machine needs more than 5 s to write down how a run ended
    for name in ("PREFECT_HOME", "MPLCONFIGDIR", *runner.environment.QUIET):  # undone after the test
        monkeypatch.setenv(name, os.environ.get(name, runner.environment.QUIET.get(name, str(tmp_path / "prefect"))))
    fake_stages.calls.clear()
    fake_stages.trouble.clear()
    yield load_settings(["experiment=tiny", f"paths.root={empty_mlflow}", "tracking.experiment=trial"])
    fake_stages.trouble.clear()


def run(
    settings: ExperimentSettings, selection: Selection | None = None, resume: Record | None = None, **changes: Any
) -> tuple[int, str]:
    """Run without Prefect; exit code and what was printed."""
    rich = RichConsole(file=io.StringIO(), width=200)
    changed = settings.model_copy(update=changes)
    code = runner.run_pipeline(
        changed, ["experiment=tiny"], selection or Selection(), False, console=Console(rich), resume=resume
    )
    return code, rich.file.getvalue()  # type: ignore[attr-defined]


def run_program(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    checkout = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, env={**os.environ, **checkout, **environment}, capture_output=True, text=True, check=False
    )


def runs(settings: ExperimentSettings) -> tuple[list[Run], dict[str, list[Run]]]:
    """Parent runs, and stage runs by stage; the newest first."""
    uri = f"sqlite:///{settings.paths.root}/mlflow.db"
    client = MlflowClient(uri, uri)
    experiment = client.get_experiment_by_name(settings.tracking.experiment)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    stages = {name: [r for r in found if r.data.tags.get("stage") == name] for name in ALL}
    return [r for r in found if "stage" not in r.data.tags], stages


def test_a_first_run_executes_all_and_a_second_reuses_all(settings: ExperimentSettings) -> None:
    code, text = run(settings)
    assert code == 0, text
    assert fake_stages.calls == ALL
    assert "win rate, %" in text
    assert "rloo ui" in text
    code, text = run(settings)
    assert code == 0, text
    assert "nothing was computed: every stage is reused" in text
    assert fake_stages.calls == ALL
    (second, first), stages = runs(settings)
    assert {name: len(each) for name, each in stages.items()} == dict.fromkeys(ALL, 1)
    assert {r.data.metrics["evaluation/policy/sampled/win_rate"] for r in (first, second)} == {0.5}
    assert [second.data.tags[f"reused.{name}"] for name in ALL] == [stages[name][0].info.run_id for name in ALL]
    assert {r.data.tags["mlflow.parentRunId"] for each in stages.values() for r in each} == {first.info.run_id}
    assert {r.info.status for r in [first, second, *(r for each in stages.values() for r in each)]} == {"FINISHED"}


def test_bytes_are_hashed_before_they_are_used(settings: ExperimentSettings) -> None:
    """A flipped bit, with size and time of change as they were: rebuilt where a stage would read it."""
    run(settings)
    (file,) = (Path(settings.paths.root) / "store" / "sft").glob("*/model/model.safetensors")
    good, state = file.read_bytes(), file.stat()
    file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    fake_stages.calls.clear()
    assert run(settings)[0] == 0
    assert fake_stages.calls == []  # nobody reads it
    algorithm = settings.algorithm.model_copy(update={"kl_coef": 0.7})
    code, text = run(settings, algorithm=algorithm)
    assert code == 0, text
    assert fake_stages.calls == ["sft", "policy", "evaluation"]
    assert file.read_bytes() == good


def test_a_harmless_code_change_is_accepted_and_recorded(
    settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(settings)
    fake_stages.calls.clear()
    original = fingerprint._code
    monkeypatch.setattr(fingerprint, "_code", lambda *a: original(*a) | {"rloo_core.trainer": "edited"})
    take_over = Store.take_over

    def alone(store: Store, earlier: Manifest, new: str, *rest: Any) -> Manifest:
        with (store.root / "locks" / f"{earlier.stage}-{new}").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another run that accepts it would wait
        return take_over(store, earlier, new, *rest)

    monkeypatch.setattr(Store, "take_over", alone)
    plan = make_plan(settings, Store(settings.paths.root), Selection())
    assert "run" in {stage.action for stage in plan}
    code, text = run(settings, Selection(accept_code=True))
    assert code == 0, text
    assert fake_stages.calls == []
    assert "sft            accepted: code added: rloo_core/trainer.py" in text
    assert run(settings)[0] == 0  # from now on they are simply there
    assert fake_stages.calls == []
    store = Store(settings.paths.root)
    accepted = [each for each in store.manifests("policy") if each.accepted]
    assert [each.accepted["changed"] for each in accepted] == [["code added: rloo_core/trainer.py"]]
    assert store.find("policy", accepted[0].fingerprint, verify=True)[0] == accepted[0]
    parents, _ = runs(settings)
    assert "rloo_core/trainer.py" in parents[1].data.tags["accepted.policy"]
    algorithm = settings.algorithm.model_copy(update={"kl_coef": 0.7})
    assert run(settings, Selection(accept_code=True), algorithm=algorithm)[0] == 0
    assert fake_stages.calls == ["policy", "evaluation"]  # a changed setting is no code change


def mend_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy's code be another."""
    original = fingerprint._code
    mended = {"my_rewards": "mended"}
    monkeypatch.setattr(
        fingerprint, "_code", lambda stage, *a: original(stage, *a) | (mended if stage.name == "policy" else {})
    )


def test_a_stage_whose_code_was_mended_goes_on_if_a_person_accepts_that(
    settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a reward function stops the policy; mended, it goes on from its checkpoint, in its MLflow run."""
    fake_stages.trouble["policy"] = ValueError("list index out of range")
    assert run(settings)[0] == 1
    fake_stages.trouble.clear()
    mend_the_reward(monkeypatch)
    fake_stages.calls.clear()
    fake_stages.first.clear()
    store = Store(settings.paths.root)
    reasons = {stage.name: stage.reason for stage in make_plan(settings, store, Selection(accept_code=True))}
    assert reasons["policy"] == "goes on from checkpoints, accepted: code added: my_rewards.py"
    code, text = run(settings, Selection(accept_code=True))
    assert code == 0, text
    assert "policy         accepted, and goes on from its checkpoints: code added: my_rewards.py" in text
    assert fake_stages.calls == ["policy", "evaluation"]
    assert fake_stages.first["policy"] == fake_stages.STEPS // 2 - 1
    (manifest,) = store.manifests("policy")
    assert manifest.accepted is not None
    assert manifest.accepted["changed"] == ["code added: my_rewards.py"]
    parents, stages = runs(settings)
    (policy,) = stages["policy"]  # taken up, not begun again
    assert (policy.info.status, policy.data.tags["fingerprint"]) == ("FINISHED", manifest.fingerprint)
    assert policy.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
    assert "my_rewards.py" in parents[0].data.tags["accepted.policy"]
    assert sorted((store.root / "work" / "policy").glob("*")) == []
    assert list((store.root / "tracking").iterdir()) == []


def test_without_a_word_a_stage_of_other_code_starts_anew(
    settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_stages.trouble["policy"] = ValueError("list index out of range")
    assert run(settings)[0] == 1
    fake_stages.trouble.clear()
    mend_the_reward(monkeypatch)
    reasons = {stage.name: stage.reason for stage in make_plan(settings, Store(settings.paths.root), Selection())}
    wanted = "code added: my_rewards.py; starts anew (--accept-code would go on from its checkpoints)"
    assert reasons["policy"] == wanted
    assert run(settings)[0] == 0
    assert fake_stages.first["policy"] == 0


def test_a_changed_setting_is_no_change_of_code(settings: ExperimentSettings) -> None:
    fake_stages.trouble["policy"] = ValueError("list index out of range")
    assert run(settings)[0] == 1
    fake_stages.trouble.clear()
    algorithm = settings.algorithm.model_copy(update={"kl_coef": 0.7})
    assert run(settings, Selection(accept_code=True), algorithm=algorithm)[0] == 0
    assert fake_stages.first["policy"] == 0


def test_a_device_that_is_not_there_is_told_before_any_work(
    settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, text = run(settings, compute=settings.compute.model_copy(update={"device": "cuda"}))
    assert code == 2
    assert "compute.device=cuda, but torch finds no CUDA device here" in text
    assert fake_stages.calls == []


def test_lineage_leads_from_the_policy_to_the_rows(settings: ExperimentSettings) -> None:
    run(settings)
    _, stages = runs(settings)
    uri = f"sqlite:///{settings.paths.root}/mlflow.db"
    client = MlflowClient(uri, uri)
    policy = client.get_run(stages["policy"][0].info.run_id)
    assert len(policy.inputs.model_inputs) == 2
    assert {each.dataset.name for each in policy.inputs.dataset_inputs} == {"prompts-train", "prompts-validation"}
    version = client.get_model_version("trial-policy", "1")
    assert version.run_id == policy.info.run_id
    assert (version.tags["from.sft"], version.tags["from.reward_model"]) == ("trial-sft/1", "trial-reward-model/1")
    assert len(version.tags["from.data"]) == 32


def test_without_registration_and_copies(settings: ExperimentSettings) -> None:
    tracking = settings.tracking.model_copy(update={"register_models": False, "log_models": False})
    assert run(settings, tracking=tracking)[0] == 0
    uri = f"sqlite:///{settings.paths.root}/mlflow.db"
    assert list(MlflowClient(uri, uri).search_registered_models()) == []
    assert list((Path(settings.paths.root) / "artifacts").rglob("*.safetensors")) == []


def test_an_error_in_a_stage_is_one_message(settings: ExperimentSettings) -> None:
    fake_stages.trouble["reward_model"] = ValueError("expected pairs, got none; set data.path")
    code, text = run(settings)
    assert code == 1
    assert "error: reward_model: expected pairs, got none; set data.path" in text
    assert "Traceback" not in text
    log = next((Path(settings.paths.root) / "logs").glob("*.log"))
    assert str(log) in text
    assert "Traceback" in log.read_text()
    (parent,), stages = runs(settings)
    assert parent.info.status == "FAILED"
    assert stages["reward_model"][0].info.status == "FAILED"
    assert not (Path(settings.paths.root) / "store" / "reward_model").exists()


def test_an_unexpected_error_shows_its_traceback(settings: ExperimentSettings) -> None:
    fake_stages.trouble["sft"] = ZeroDivisionError("division by zero")
    code, text = run(settings)
    assert code == 1
    assert "Traceback" in text


def test_an_exit_in_a_stage_is_an_error(settings: ExperimentSettings) -> None:
    fake_stages.trouble["policy"] = SystemExit(0)
    code, text = run(settings)
    assert code == 1
    assert "error: policy: its code called sys.exit(0), but a stage (and a reward function) returns or raises" in text
    assert "Traceback" not in text
    (parent,), stages = runs(settings)
    assert (parent.info.status, stages["policy"][0].info.status) == ("FAILED", "FAILED")


def test_a_root_that_is_a_file_is_one_line(settings: ExperimentSettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        code, text = run(settings, paths=settings.paths.model_copy(update={"root": str(root)}))
        assert code == 1
        assert text.count("\n") == 1
        assert re.fullmatch(f"error: paths.root={root} cannot be written: .*; set paths.root\n", text)


def test_a_full_disk_is_one_message(settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    full = sqlite3.OperationalError("database or disk is full")
    error = RuntimeError("(sqlite3.OperationalError) something\nand many lines")
    error.__cause__ = full
    monkeypatch.setattr(runner, "_append", lambda *_: False)  # neither can the log be written
    for trouble in (error, OSError(errno.ENOSPC, "No space left on device", "checkpoints/1")):
        fake_stages.trouble["sft"] = trouble
        code, text = run(settings)
        assert code == 1
        assert f"error: sft: the disk is full: paths.root={settings.paths.root} has " in text
        assert "Traceback" not in text
        assert "log:" not in text
    assert "checkpoints/1 could not be written" in text


def test_a_named_prefect_server_that_is_away_is_told_before_any_work(
    settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "nonsense")
    rich = RichConsole(file=io.StringIO(), width=200)
    code = runner.run_pipeline(settings, [], Selection(), use_prefect=True, console=Console(rich))
    text = rich.file.getvalue()  # type: ignore[attr-defined]
    assert code == 1
    assert text.startswith("error: PREFECT_API_URL=nonsense is no address")
    assert text.count("\n") == 1
    assert fake_stages.calls == []
    assert run(settings, Selection(until="data"))[0] == 0  # without Prefect nobody asks


def test_after_an_error_the_stage_goes_on_and_every_step_appears_once(settings: ExperimentSettings) -> None:
    fake_stages.trouble["sft"] = ValueError("once")
    assert run(settings)[0] == 1
    fake_stages.trouble.clear()
    assert run(settings)[0] == 0
    (second, _), stages = runs(settings)
    (sft,) = stages["sft"]
    assert (sft.info.status, sft.data.tags["attempt"]) == ("FINISHED", "2")
    assert sft.data.tags["mlflow.parentRunId"] == second.info.run_id
    uri = f"sqlite:///{settings.paths.root}/mlflow.db"
    history = MlflowClient(uri, uri).get_metric_history(sft.info.run_id, "loss/mean")
    assert sorted(metric.step for metric in history) == list(range(1, fake_stages.STEPS + 1))


def test_resuming_goes_on_under_the_same_parent(settings: ExperimentSettings) -> None:
    root = Path(settings.paths.root)
    fake_stages.trouble["reward_model"] = ValueError("once")
    assert run(settings, Selection(until="policy"))[0] == 1
    fake_stages.trouble.clear()
    record = to_resume(root, "last")
    assert (record.status, record.selection) == ("FAILED", Selection(until="policy"))
    assert record.settings(root) == settings
    assert run(settings, record.selection, resume=record)[0] == 0
    assert fake_stages.calls == ["data", "sft", "reward_model", "reward_model", "policy"]
    (parent,), stages = runs(settings)
    assert (parent.info.status, parent.data.tags["attempt"]) == ("FINISHED", "2")
    assert {r.data.tags["mlflow.parentRunId"] for each in stages.values() for r in each} == {parent.info.run_id}
    assert [r.info.status for r in stages["reward_model"]] == ["FINISHED"]
    assert [record.status for record in records(root)] == ["FINISHED"]
    with pytest.raises(ConfigError, match="has finished; run it again with: rloo run experiment=tiny"):
        to_resume(root, record.name)


def test_resuming_forces_what_has_not_been_made_anew_and_keeps_its_checkpoint(settings: ExperimentSettings) -> None:
    root = Path(settings.paths.root)
    assert run(settings)[0] == 0
    fake_stages.calls.clear()
    fake_stages.trouble["reward_model"] = ValueError("once")
    assert run(settings, Selection(force=("sft", "reward_model")))[0] == 1
    fake_stages.trouble.clear()
    record = to_resume(root, "last")
    left = left_of(record, Store(root))
    assert left == Selection(force=("reward_model",))
    assert run(settings, left, resume=record)[0] == 0
    assert fake_stages.calls == ["sft", "reward_model", "reward_model"]
    newest = runs(settings)[1]["reward_model"][0]
    assert (newest.info.status, newest.data.tags["attempt"]) == ("FINISHED", "2")  # it went on, it did not start anew


def test_runs_are_listed_and_found_by_the_beginning_of_their_names(settings: ExperimentSettings) -> None:
    root = Path(settings.paths.root)
    for _ in range(2):
        run(settings, Selection(until="data"))
    newest, oldest = records(root)
    assert find_record(root, "last").name == newest.name
    assert find_record(root, oldest.name).name == oldest.name
    assert find_record(root, oldest.state.run_id[:12]).name == oldest.name
    assert [note["action"] for record in (oldest, newest) for note in record.state.notes] == ["run", "reused"]
    with pytest.raises(ConfigError, match=r"may be .*; write more of it"):
        find_record(root, oldest.name[:4])
    with pytest.raises(ConfigError, match="there is no run nonsense in"):
        find_record(root, "nonsense")


def test_a_run_whose_process_died_counts_as_killed(settings: ExperimentSettings) -> None:
    root = Path(settings.paths.root)
    run(settings, Selection(until="data"))
    (record,) = records(root)
    record.state.status, record.state.process["process.pid"] = "RUNNING", "4194399"
    assert record.status == "KILLED"
    record.state.process = processes.identity()
    record.evidence.save()
    with pytest.raises(ConfigError, match="is still running"):
        to_resume(root, "last")


def test_ctrl_c_ends_the_runs_as_killed(settings: ExperimentSettings) -> None:
    fake_stages.trouble["policy"] = KeyboardInterrupt()
    code, text = run(settings)
    assert code == 130
    assert "the same command goes on" in text
    (parent,), stages = runs(settings)
    assert (parent.info.status, stages["policy"][0].info.status) == ("KILLED", "KILLED")


def test_sigterm_ends_the_runs_as_killed(settings: ExperimentSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("FAKE_TERM", "sft")
    assert run(settings)[0] == 143
    (parent,), stages = runs(settings)
    assert (parent.info.status, stages["sft"][0].info.status) == ("KILLED", "KILLED")
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_killed_process_is_reconciled_and_gone_on_from(settings: ExperimentSettings) -> None:
    program = f"""
        import pytest
        from pipelines import runner
        from pipelines.config import load_settings
        from pipelines.plan import Selection, make_plan
        from tests.pipelines.conftest import install_fake_stages
        install_fake_stages(pytest.MonkeyPatch())
        settings = load_settings(["experiment=tiny", "paths.root={settings.paths.root}", "tracking.experiment=trial"])
        runner.run_pipeline(settings, [], Selection(), use_prefect=False)
    """
    done = run_program(program, FAKE_KILL="policy")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert run(settings)[0] == 0
    assert fake_stages.calls == ["policy", "evaluation"]
    (second, first), stages = runs(settings)
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    (policy,) = stages["policy"]
    assert (policy.info.status, policy.data.tags["attempt"]) == ("FINISHED", "2")


def test_a_forced_stage_runs_again_in_a_new_mlflow_run(settings: ExperimentSettings) -> None:
    run(settings)
    assert run(settings, Selection(force=("sft",)))[0] == 0
    assert fake_stages.calls == [*ALL, "sft"]  # the same bytes: what follows is reused
    assert len(runs(settings)[1]["sft"]) == 2


def test_only_the_selected_stages_run(settings: ExperimentSettings) -> None:
    assert run(settings, Selection(until="sft"))[0] == 0
    assert fake_stages.calls == ["data", "sft"]
    code, text = run(settings, Selection(only=("policy",)))
    assert code == 2
    assert "reward_model" in text


def test_a_reused_run_imports_no_torch(settings: ExperimentSettings) -> None:
    run(settings)
    program = f"""
        import sys, pytest
        from tests.pipelines.conftest import install_fake_stages
        install_fake_stages(pytest.MonkeyPatch())
        from pipelines import runner
        from pipelines.config import load_settings
        from pipelines.plan import Selection, make_plan
        settings = load_settings(["experiment=tiny", "paths.root={settings.paths.root}", "tracking.experiment=trial"])
        assert runner.run_pipeline(settings, [], Selection(), use_prefect=False) == 0
        assert "torch" not in sys.modules and "prefect" not in sys.modules
    """
    done = run_program(program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_nothing_is_written_outside_the_run_root(
    settings: ExperimentSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(elsewhere))
    assert run(settings)[0] == 0
    assert list(elsewhere.iterdir()) == []
