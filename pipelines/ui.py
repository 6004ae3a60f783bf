"""MLflow's pages on a run root, on this machine only and with as few processes as it can do with."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.artifact_root import artifact_root
from pipelines.config_errors import ConfigError
from pipelines.environment import prepare
from pipelines.service_addresses import HOST, running_services
from pipelines.services_keeper import answers
from rloo_core.settings import ExperimentSettings

STOPPED = (-2, -15, 130, 143)  # by Ctrl-C or SIGTERM


def start_server(settings: ExperimentSettings, port: int, say: Callable[[str], None]) -> int:
    """Run MLflow's server until Ctrl-C or SIGTERM; its address is said when it answers.

    Returns:
        Exit code.

    Raises:
        ConfigError: If there is nothing to show yet, somebody else serves it, or the port is taken.
    """
    refuse(settings, port)
    root = Path(settings.paths.root)
    environment = dict(os.environ)
    prepare(root, environment)
    environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # job runners would take another gigabyte
    command = [sys.executable, "-m", "pipelines.watchdog", *server_command(settings, port)]
    say(f"starting MLflow on {root} ...")
    # its working directory is the run root: it leaves small files where it starts
    server = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=root, start_new_session=True)
    try:
        while server.poll() is None and not answers(f"http://{HOST}:{port}/health"):
            time.sleep(0.1)
        if server.poll() is None:
            say(f"MLflow: http://{HOST}:{port} (experiment {settings.tracking.experiment}); Ctrl-C ends it")
            sys.stdout.flush()
        code = server.wait()
    except KeyboardInterrupt:
        code = 130
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
    return 0 if code in STOPPED else code


def refuse(settings: ExperimentSettings, port: int) -> None:
    """Raise a ConfigError where a server would have nothing to show, or nowhere to listen."""
    root, uri = Path(settings.paths.root), settings.tracking.uri
    if uri is not None and uri.startswith(("http://", "https://")):
        raise ConfigError(f"tracking.uri={uri} is a server already; open it in a browser")
    services = running_services(root)
    if services is not None:
        raise ConfigError(f"{services.mlflow} serves this run root already (`rloo services`); open it in a browser")
    if uri is None and not (root / "mlflow.db").exists():
        raise ConfigError(f"there is no run in {root} yet; start one with `rloo run`, or name another paths.root=...")
    if not _free(port):
        raise ConfigError(f"port {port} on {HOST} is taken; choose another: rloo ui --port {port + 1}")


def server_command(settings: ExperimentSettings, port: int) -> list[str]:
    """The command line of MLflow's server for these settings: two processes, half a gigabyte."""
    root, tracking = Path(settings.paths.root), settings.tracking
    arguments = {
        "--host": HOST,
        "--port": str(port),
        "--workers": "1",
        "--backend-store-uri": tracking.uri or f"sqlite:///{root / 'mlflow.db'}",
        "--default-artifact-root": artifact_root(tracking, root) or (root / "artifacts").as_uri(),
    }
    flat = [word for argument in arguments.items() for word in argument]
    return [sys.executable, "-m", "mlflow", "server", *flat]


def _free(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind((HOST, port))
        except OSError:
            return False
    return True
