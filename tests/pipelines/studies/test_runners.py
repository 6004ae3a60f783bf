"""Where a study's tasks run: what is refused, and that a cluster which is started here is of this machine alone."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from pipelines.config_errors import ConfigError
from pipelines.studies import runners
from pipelines.studies.runners import check_runner, task_runner


@pytest.fixture
def prefects(monkeypatch):
    """Prefect's runners for Dask and Ray, replaced by ones that keep what they are given."""
    for kind, name in (("dask", "DaskTaskRunner"), ("ray", "RayTaskRunner")):
        module = ModuleType(f"prefect_{kind}.task_runners")
        setattr(module, name, dict)
        monkeypatch.setitem(sys.modules, f"prefect_{kind}", ModuleType(f"prefect_{kind}"))
        monkeypatch.setitem(sys.modules, f"prefect_{kind}.task_runners", module)


@pytest.fixture
def environ(monkeypatch):
    """An environment without Ray's variables."""
    empty: dict[str, str] = {}
    monkeypatch.setattr(runners.os, "environ", empty)
    return empty


def test_a_runner_without_its_library_is_refused_with_the_command(monkeypatch):
    monkeypatch.setattr(runners.importlib.util, "find_spec", lambda name: None)
    check_runner("local")
    for kind in ("dask", "ray"):
        with pytest.raises(ConfigError, match=rf"--runner {kind} needs prefect-{kind}: pip install 'rloo\[{kind}\]'"):
            check_runner(kind)


@pytest.mark.usefixtures("prefects")
def test_ray_of_this_machine_has_a_token_and_files_of_its_own_that_go(environ):
    with task_runner("ray", 2, None) as runner:
        options = runner["init_kwargs"]
        assert (runner["address"], options["num_cpus"], options["include_dashboard"]) == (None, 2, False)
        folder = Path(options["_temp_dir"])
        assert folder.is_dir()
        assert environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"  # on loopback alone
        assert environ["RAY_USAGE_STATS_ENABLED"] == "0"  # nothing is sent anywhere
        assert environ["RAY_AUTH_MODE"] == "token"
        token = environ["RAY_AUTH_TOKEN"]
        assert len(token) == 64
    assert not folder.exists()
    with task_runner("ray", 2, None):
        assert environ["RAY_AUTH_TOKEN"] == token  # Ray reads it once a process


@pytest.mark.usefixtures("prefects")
def test_a_cluster_that_runs_is_asked_as_it_is(environ):
    with task_runner("ray", 2, "ray://a:1") as runner:
        assert runner == {"address": "ray://a:1", "init_kwargs": None}
    with task_runner("dask", 2, "tcp://a:1") as runner:
        assert runner == {"address": "tcp://a:1", "cluster_kwargs": None}
    assert not [name for name in environ if name.startswith("RAY_")]


@pytest.mark.usefixtures("prefects", "environ")
def test_dask_of_this_machine_listens_on_loopback():
    with task_runner("dask", 3, None) as runner:
        assert runner["cluster_kwargs"]["host"] == "127.0.0.1"
        assert runner["cluster_kwargs"]["n_workers"] == 3
        assert runner["cluster_kwargs"]["dashboard_address"] is None
