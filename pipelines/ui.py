"""MLflow's pages on a run root, on this machine only and with as few processes as it can do with."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pipelines.config_errors import ConfigError
from pipelines.environment import prepare
from rloo_core.settings import ExperimentSettings

HOST = "127.0.0.1"


def start_server(settings: ExperimentSettings, port: int, say: Callable[[str], None]) -> None:
    """Replace this process by MLflow's server.

    Raises:
        ConfigError: If there is nothing to show yet, somebody else serves it, or the port is taken.
    """
    command = server_command(settings, port)
    root = Path(settings.paths.root)
    environment = dict(os.environ)
    prepare(root, environment)
    environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # job runners would take another gigabyte
    say(f"MLflow on {root}: http://{HOST}:{port} (experiment {settings.tracking.experiment}); Ctrl-C ends it")
    sys.stdout.flush()
    os.chdir(root)  # MLflow leaves small files where it starts
    os.execve(command[0], command, environment)


def server_command(settings: ExperimentSettings, port: int) -> list[str]:
    """The command line of MLflow's server for these settings.

    Raises:
        ConfigError: See `start_server`.
    """
    root, uri = Path(settings.paths.root), settings.tracking.uri
    if uri is not None and uri.startswith(("http://", "https://")):
        raise ConfigError(f"tracking.uri={uri} is a server already; open it in a browser")
    if uri is None and not (root / "mlflow.db").exists():
        raise ConfigError(f"there is no run in {root} yet; start one with `rloo run`, or name another paths.root=...")
    if not _free(port):
        raise ConfigError(f"port {port} on {HOST} is taken; choose another: rloo ui --port {port + 1}")
    arguments = {
        "--host": HOST,
        "--port": str(port),
        "--workers": "1",
        "--backend-store-uri": uri or f"sqlite:///{root / 'mlflow.db'}",
        "--default-artifact-root": (root / "artifacts").as_uri(),
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
