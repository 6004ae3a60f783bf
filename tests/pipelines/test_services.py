"""`rloo services up`, before anything is started."""

import os
import sys
from pathlib import Path

import pytest

from pipelines import service_addresses, services
from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.deployed import keep_overrides, machine_overrides
from pipelines.service_addresses import Services, mlflow_address, mlflow_place, other_mlflow, same_places
from rloo_core.settings import ExperimentSettings, TrackingSettings
from tests.end_to_end.services import free_port


class Replaced(Exception):
    """A process that is replaced does not come back."""


def test_in_the_foreground_the_keeper_takes_the_place_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    ports = [f"services.{name}_port={free_port()}" for name in ("prefect", "mlflow")]

    def replace(program: str, command: list[str]) -> None:
        assert command == [program, "-m", "pipelines.services_keeper", str(root)]
        assert program == sys.executable
        raise Replaced

    monkeypatch.setattr(os, "execv", replace)
    monkeypatch.setattr(services, "prepare_tracking", lambda settings, say: (root / "services").mkdir(exist_ok=True))
    monkeypatch.setattr(services, "_own_environment", lambda root, environ: None)
    with pytest.raises(Replaced):
        services.up(load_settings([f"paths.root={root}", *ports]), [], foreground=True, say=print)
    assert (root / "services" / "spec.json").is_file()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of services that were started with settings of their own, and run."""
    found = Services(1, "http://127.0.0.1:4300", "http://127.0.0.1:5300", "mine", (), True)
    keep_overrides(tmp_path, ["services.work_pool=mine", "services.runs_at_once=2", "tracking.uri=postgresql://u@h/m"])
    monkeypatch.setattr(services, "running_services", lambda root: found)
    return tmp_path


def deployed(root: Path, monkeypatch: pytest.MonkeyPatch, *typed: str) -> ExperimentSettings:
    """`rloo services up` with some overrides; the settings that deployments are made from."""
    made: list[ExperimentSettings] = []
    monkeypatch.setattr(services, "redeploy", lambda settings, *_: made.append(settings))
    overrides = [*typed, f"paths.root={root}"]
    services.up(load_settings(overrides), overrides, foreground=False, say=print)
    return made[0]


def test_a_second_up_keeps_what_the_services_were_started_with(running: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine_overrides(running)
    settings = deployed(running, monkeypatch)
    assert machine_overrides(running) == before
    assert (settings.services.work_pool, settings.services.runs_at_once) == ("mine", 2)
    deployed(running, monkeypatch, "services.work_pool=mine", "compute.threads=2")
    assert machine_overrides(running) == [*before, "compute.threads=2"]


@pytest.mark.parametrize("text", ["services.work_pool=other", "tracking.uri=null", "services.mlflow_port=5001"])
def test_running_services_are_not_given_other_settings(
    running: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    before = machine_overrides(running)
    with pytest.raises(ConfigError, match="`rloo services down` first"):
        deployed(running, monkeypatch, text)
    assert machine_overrides(running) == before


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        (None, ""),
        ("sqlite:////root/mlflow.db", ""),
        ("sqlite:////else/mlflow.db", "sqlite:////else/mlflow.db"),
        ("postgresql+psycopg2://me:secret@localhost:5432/mlflow?sslmode=require", "postgresql+psycopg2://127.0.0.1:5432/mlflow"),
        ("https://me:secret@mlflow.example/", "https://mlflow.example"),
    ],
)  # fmt: skip
def test_a_place_names_no_user_and_no_password(uri: str | None, place: str) -> None:
    assert mlflow_place(uri, Path("/root")) == place


def test_a_run_that_the_services_do_not_show_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ("tracking.uri=postgresql://u@h/m",)
    found = Services(1, "http://127.0.0.1:4300", "http://127.0.0.1:5300", "mine", shown, True)
    monkeypatch.setattr(service_addresses, "running_services", lambda root: found)

    def tracking(*typed: str) -> TrackingSettings:
        return load_settings([*typed, f"paths.root={tmp_path}"]).tracking

    for same in (shown, ("tracking.uri=http://localhost:5300",)):
        assert other_mlflow(tracking(*same), tmp_path) == ""
        assert mlflow_address(tracking(*same), tmp_path).endswith(":5300")
    assert same_places("postgresql://h/m", tmp_path) == {"postgresql://h/m", "http://127.0.0.1:5300"}
    assert same_places("http://127.0.0.1:5300", tmp_path) == {"postgresql://h/m", "http://127.0.0.1:5300"}
    assert same_places("", tmp_path) == {""}
    assert "(that of the run root) than the services show (postgresql://h/m)" in other_mlflow(tracking(), tmp_path)
    assert mlflow_address(tracking(), tmp_path) == "", "its pages have no such run"
