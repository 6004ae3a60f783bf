"""The command line: exit codes, messages, and nothing heavy before it is needed."""

import json
import socket
import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.ui import refuse, server_command
from rloo_core.stages import STAGES


@pytest.fixture
def rloo(tmp_path, monkeypatch):
    """Type a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    return lambda *words: runner.invoke(app, list(words))


@pytest.fixture
def calls(monkeypatch):
    """A runner that only notes what it is asked to do."""
    noted = []

    def run_pipeline(*arguments, resume=None):
        noted.append(arguments)
        return 7

    module = types.ModuleType("pipelines.runner")
    module.run_pipeline = run_pipeline
    monkeypatch.setitem(sys.modules, "pipelines.runner", module)
    return noted


def test_help_shows_every_command_with_examples(rloo):
    assert rloo("--help").exit_code == 0
    for command in ("run", "plan", "config", "ui"):
        shown = rloo(command, "--help")
        assert shown.exit_code == 0
        assert "Examples" in shown.output
        assert f"rloo {command}" in shown.output


def test_version(rloo):
    assert rloo("--version").output.startswith("rloo ")


def test_config_prints_the_resolved_settings(rloo, tmp_path):
    shown = rloo("config", "experiment=tiny", "seed=3")
    assert shown.exit_code == 0
    assert "name: tiny" in shown.output
    assert f"root: {tmp_path}/runs" in shown.output
    assert "${" not in shown.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "plan", "config", "ui"])
def test_wrong_settings_are_listed_without_a_traceback(rloo, calls, command):
    shown = rloo(command, "algorithm.group_siz=2", "sft.epochs=abc")
    assert shown.exit_code == 2
    assert shown.stderr.splitlines() == [
        "rloo: there is no setting algorithm.group_siz; did you mean algorithm.group_size?",
        "rloo: sft.epochs=abc, but it must be a number",
    ]
    assert calls == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("plan", "--onyl", "sft"), "--onyl is no option of this command; did you mean --only?"),
        (("plan", "--seed=1"), "--seed=1: settings have no dashes: seed=1"),
        (("plan", "--experiment", "tiny"), "--experiment: settings have no dashes: experiment=..."),
        (("pln",), "Did you mean 'plan'?"),
        (("seed=1",), "seed=1 is a setting; the command comes first: rloo run seed=1"),
        (("plan", "--only", "polcy"), "did you mean policy?"),
        (("run", "--from", "policy", "--until", "sft"), "policy comes after sft"),
        (("run", "--only", "policy"), "make it with: rloo run --until reward_model"),
    ],
)
def test_slips_are_answered(rloo, calls, words, sentence):
    shown = rloo(*words)
    assert shown.exit_code == 2
    assert sentence in shown.output
    assert calls == []


def test_run_hands_over_and_returns_the_runners_exit_code(rloo, calls):
    shown = rloo("run", "experiment=tiny", "--until", "policy", "--force", "data", "--force", "sft", "--no-prefect")
    assert shown.exit_code == 7
    settings, overrides, selection, use_prefect = calls[0]
    assert settings.name == "tiny"
    assert overrides == ["experiment=tiny"]
    assert (selection.until, selection.force, use_prefect) == ("policy", ("data", "sft"), False)


def test_plan_shows_a_table_and_says_so_by_its_exit_code(rloo):
    shown = rloo("plan", "experiment=tiny")
    assert shown.exit_code == 3
    for stage in STAGES:
        assert stage in shown.output
    assert "first run" in shown.output
    assert "after reward_model" in shown.output


def test_plan_as_json(rloo, tmp_path):
    shown = rloo("plan", "experiment=tiny", "--until", "data", "--json")
    assert shown.exit_code == 3
    plan = json.loads(shown.output)
    assert plan["root"] == f"{tmp_path}/runs"
    assert [stage["action"] for stage in plan["stages"]] == ["run", "skip", "skip", "skip", "skip"]
    assert len(plan["stages"][0]["fingerprint"]) == 32


def test_a_plan_in_a_process_imports_nothing_heavy_and_leaves_nothing(tmp_path):
    code = (
        "import sys; sys.argv = ['rloo', 'plan', 'experiment=tiny']\n"
        "from pipelines.cli import main\n"
        "try: main()\n"
        "except SystemExit as end:\n"
        "    heavy = [m for m in ('torch', 'transformers', 'mlflow', 'prefect', 'pandas') if m in sys.modules]\n"
        "    print('heavy', heavy); raise\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 3
    assert "heavy []" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_ui_without_a_run_says_what_to_do(rloo, tmp_path):
    shown = rloo("ui")
    assert shown.exit_code == 2
    assert f"there is no run in {tmp_path}/runs yet; start one with `rloo run`" in shown.stderr


@pytest.fixture
def settings_with_a_run(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").touch()
    return load_settings([f"paths.root={tmp_path / 'runs'}"])


def test_ui_serves_the_runs_store_on_loopback(settings_with_a_run, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = server_command(settings_with_a_run, port)
    assert command[1:4] == ["-m", "mlflow", "server"]
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert options == {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--workers": "1",
        "--backend-store-uri": f"sqlite:///{tmp_path}/runs/mlflow.db",
        "--default-artifact-root": f"file://{tmp_path}/runs/artifacts",
    }


def test_ui_says_that_the_port_is_taken(settings_with_a_run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is taken; choose another: rloo ui --port"):
            refuse(settings_with_a_run, port)


def test_ui_of_a_server_is_that_server():
    settings = load_settings(["tracking.uri=http://tracking:5000"])
    with pytest.raises(ConfigError, match="is a server already; open it"):
        refuse(settings, 5000)
