"""`rloo services up | status | down | deploy`: a Prefect server, a worker and MLflow for one machine, on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError, Refused
from pipelines.config_overrides import last_of_each
from pipelines.deployed import keep_overrides, machine_overrides
from pipelines.environment import prepare
from pipelines.preflight import check_root
from pipelines.service_addresses import FOLDER, HOST, Services, running_services, worker_name
from pipelines.services_keeper import SPEC, answers
from pipelines.ui import server_command
from rloo_core.settings import ExperimentSettings

START_SECONDS = 240.0
STOP_SECONDS = 90.0
LOG = "services.log"
MACHINE = ("paths.", "services.", "tracking.", "tracking=", "compute.", "compute=")


class ServicesError(Refused):
    """The services could not be started or stopped; the message says what to do."""


def up(settings: ExperimentSettings, overrides: Sequence[str], foreground: bool, say: Callable[[str], None]) -> None:
    """Start the services, make the deployments, and wait until all of it answers.

    Where they run already, the deployments are brought up to date, and what they were started with stays.

    Raises:
        ConfigError: If a port is taken, or services with other settings run already.
        ServicesError: If they did not come up in time.
    """
    root = Path(settings.paths.root)
    check_root(root)
    typed, running = _of_the_machine(overrides), running_services(root)
    if running is not None:
        say(f"the services of {root} run already")
        redeploy(_added(root, typed), running.prefect_api, say)
        _tell(running, say)
        return
    _refuse_taken_ports(settings)
    keep_overrides(root, typed)
    prepare_tracking(settings, say)
    (root / FOLDER / SPEC).write_text(json.dumps(specification(settings, overrides), indent=1), encoding="utf-8")
    if foreground:
        _own_environment(root, os.environ)
        os.execv(sys.executable, _keeper_command(root))  # without what this process has loaded
    keeper = _start_keeper(root)
    _tell(_wait_until_up(root, keeper), say)


def down(root: Path, say: Callable[[str], None]) -> None:
    """Stop the services, and with them the flow runs of their worker, which go on from their checkpoints when retried.

    Raises:
        ServicesError: If they do not end.
    """
    running = running_services(root)
    if running is None:
        say(f"no services of {root} run")
        return
    os.kill(running.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while running_services(root) is not None:
        if time.monotonic() > deadline:
            raise ServicesError(f"the services do not end; their keeper is process {running.pid}, see {_log(root)}")
        time.sleep(0.1)
    say(f"the services of {root} are stopped")


def status(root: Path, say: Callable[[str], None]) -> bool:
    """Say what runs and what does not; True if everything does."""
    running = running_services(root)
    if running is None:
        say(f"no services of {root} run; start them with `rloo services up`")
        return False
    healthy = {"prefect": answers(f"{running.prefect_api}/health"), "mlflow": answers(f"{running.mlflow}/health")}
    healthy["worker"] = healthy["prefect"] and _worker_online(running)
    addresses = {"prefect": running.prefect, "mlflow": running.mlflow, "worker": f"work pool {running.pool}"}
    for name, good in healthy.items():
        say(f"{name:<8} {'up' if good else 'DOWN':<5} {addresses[name]}")
    say(f"log      {_log(root)} and {root}/logs/service-*.log")
    return all(healthy.values())


def deploy(settings: ExperimentSettings, overrides: Sequence[str], say: Callable[[str], None]) -> None:
    """Make work pool and deployments, on the running services or on the server of PREFECT_API_URL.

    Raises:
        ServicesError: If there is no server, or Prefect refused.
    """
    root = Path(settings.paths.root)
    running = running_services(root)
    api_url = running.prefect_api if running else os.environ.get("PREFECT_API_URL", "")
    if not api_url:
        raise ServicesError("no services run and PREFECT_API_URL names no server; start them with `rloo services up`")
    typed = _of_the_machine(overrides)
    if running is not None or not typed:
        settings = _added(root, typed)
    else:
        keep_overrides(root, typed)
    redeploy(settings, api_url, say)


def _added(root: Path, typed: Sequence[str]) -> ExperimentSettings:
    """The machine's settings with what is typed besides; noted for the runs of deployments.

    Raises:
        ConfigError: If services with other settings run: they cannot be changed under way.
    """
    before = machine_overrides(root)
    of_services = [text for text in typed if text.startswith(("services.", "tracking"))]
    if running_services(root) is not None and (others := [text for text in of_services if text not in before]):
        raise ConfigError(
            [f"{text}: the services of {root} run without it; `rloo services down` first, then `up` with all settings"
             for text in others]
        )  # fmt: skip
    overrides = last_of_each([*before, *typed])
    keep_overrides(root, overrides)
    return load_settings([*overrides, f"paths.root={root}"])


def _of_the_machine(overrides: Sequence[str]) -> list[str]:
    """The overrides that hold for every run on this machine; the run root is carried by the deployments.

    Raises:
        ConfigError: If one is about a run.
    """
    about_a_run = [text for text in overrides if not text.startswith(MACHINE)]
    if about_a_run:
        raise ConfigError([f"{text} is about a run, not about services; give it to the run" for text in about_a_run])
    return [text for text in overrides if not text.startswith("paths.")]


def redeploy(settings: ExperimentSettings, api_url: str, say: Callable[[str], None]) -> None:
    """Bring the work pool and the deployments of a server up to date.

    Raises:
        ServicesError: If Prefect refused.
    """
    root = Path(settings.paths.root)
    environment = {**os.environ, "PREFECT_API_URL": api_url}
    prepare(root, environment)
    done = subprocess.run(_deploy_command(settings), env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServicesError((done.stderr or done.stdout).strip().removeprefix("rloo: "))
    say(f"deployments of {root} are up to date, in the work pool {settings.services.work_pool}")


def specification(settings: ExperimentSettings, overrides: Sequence[str]) -> dict[str, object]:
    """What the keeper runs: commands, environments, addresses."""
    root, own = Path(settings.paths.root), settings.services
    prefect, mlflow = f"http://{HOST}:{own.prefect_port}", f"http://{HOST}:{own.mlflow_port}"
    client = {"PREFECT_API_URL": f"{prefect}/api", "PYTHONUNBUFFERED": "1"}
    client |= {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING"}
    server = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(own.prefect_port)]
    worker = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process", "--pool", own.work_pool]
    worker += ["--name", worker_name(root)]
    pages = {"PREFECT_SERVER_UI_API_URL": f"{prefect}/api", "PREFECT_UI_URL": prefect}  # 4200 is taken for granted
    own_pages = f"{prefect},http://localhost:{own.prefect_port}"  # any page in a browser, by default
    pages |= {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS": own_pages}
    services = [
        {
            "name": "prefect",
            "command": server,
            "environment": {**_database(settings), **pages},
            "health": f"{prefect}/api/health",
        },
        {
            "name": "mlflow",
            "command": server_command(settings, own.mlflow_port),
            "environment": {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            "health": f"{mlflow}/health",
        },
        {"name": "worker", "command": worker, "environment": client, "health": None},
    ]
    state = {"prefect": prefect, "mlflow": mlflow, "pool": own.work_pool, "overrides": list(overrides)}
    sync = [sys.executable, "-m", "pipelines.cli", "sync", *_of_the_machine(overrides), f"paths.root={root}"]
    commands = {"deploy": _deploy_command(settings), "repair": [sys.executable, "-m", "pipelines.flow_repair"]}
    return {"services": services, **commands, "deliver": sync, "pool": own.work_pool, "state": state}


def prepare_tracking(settings: ExperimentSettings, say: Callable[[str], None]) -> None:
    """Make and migrate MLflow's database before several processes use it, and end the runs of dead processes.

    Raises:
        ServicesError: If it cannot be used.
    """
    prepare(Path(settings.paths.root))
    from pipelines.tracking import TrackingError, deliver

    try:
        deliver(settings, say, say)
    except TrackingError as error:
        raise ServicesError(str(error)) from None


def _own_environment(root: Path, environ: "os._Environ[str] | dict[str, str]") -> None:
    """Make an environment that of these services: what names another Prefect server is taken out."""
    for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE"):
        environ.pop(name, None)
    prepare(root, environ)


def _deploy_command(settings: ExperimentSettings) -> list[str]:
    own = settings.services
    return [
        sys.executable, "-m", "pipelines.services_deploy", settings.paths.root, own.work_pool, str(own.runs_at_once),
    ]  # fmt: skip


def _database(settings: ExperimentSettings) -> dict[str, str]:
    url = settings.services.prefect_database
    return {} if url is None else {"PREFECT_SERVER_DATABASE_CONNECTION_URL": url}


def _refuse_taken_ports(settings: ExperimentSettings) -> None:
    problems = []
    for key in ("prefect_port", "mlflow_port"):
        port = getattr(settings.services, key)
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind((HOST, port))
            except OSError:
                problems.append(f"services.{key}={port} is taken on {HOST}; choose another")
    if problems:
        raise ConfigError(problems)


def _keeper_command(root: Path) -> list[str]:
    return [sys.executable, "-m", "pipelines.services_keeper", str(root)]


def _start_keeper(root: Path) -> "subprocess.Popen[bytes]":
    environment = dict(os.environ)
    _own_environment(root, environment)
    with _log(root).open("ab") as log:
        return subprocess.Popen(
            _keeper_command(root),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=root,
            start_new_session=True,
        )


def _wait_until_up(root: Path, keeper: "subprocess.Popen[bytes]") -> Services:
    deadline = time.monotonic() + START_SECONDS
    while True:
        running = running_services(root)
        if running is not None and running.ready and answers(f"{running.mlflow}/health") and _worker_online(running):
            return running
        if keeper.poll() is not None:
            raise ServicesError(f"the services ended at once; see {_log(root)} and {root}/logs/service-*.log")
        if time.monotonic() > deadline:
            keeper.terminate()
            raise ServicesError(f"no services after {START_SECONDS:.0f} s; see {root}/logs/service-*.log")
        time.sleep(0.3)


def _worker_online(services: Services) -> bool:
    url = f"{services.prefect_api}/work_pools/{services.pool}/workers/filter"
    request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return any(worker["status"] == "ONLINE" for worker in json.load(answer))
    except (OSError, ValueError, KeyError):
        return False


def _tell(services: Services, say: Callable[[str], None]) -> None:
    say(f"Prefect  {services.prefect}   runs, deployments, schedules; PREFECT_API_URL={services.prefect_api}")
    say(f"MLflow   {services.mlflow}   curves, tables, model versions")
    say(f"worker   work pool {services.pool}")
    say("next     prefect deployment run rloo/full, or Prefect's pages; `rloo services down` stops all")


def _log(root: Path) -> Path:
    return root / "logs" / LOG
