"""Where the services of this machine listen, and whether they do. Standard library only.

services/lock        held by the process that looks after the services
services/state.json  its process id, and the addresses
"""

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rloo_core.settings import TrackingSettings

HOST = "127.0.0.1"
FOLDER = "services"


@dataclass(frozen=True)
class Services:
    """Running services: process id of their keeper, addresses, the overrides they were started with."""

    pid: int
    prefect: str  # without /api
    mlflow: str
    pool: str
    overrides: tuple[str, ...]
    ready: bool  # the deployments are made and the worker is started

    @property
    def prefect_api(self) -> str:
        """Value for PREFECT_API_URL."""
        return f"{self.prefect}/api"


def worker_name(root: Path) -> str:
    """The name of the worker that the services of a run root start."""
    return f"{socket.gethostname()}-{root.name}"


def running_services(root: Path) -> Services | None:
    """The services that were started for a run root and still run."""
    if not _held(root / FOLDER / "lock"):
        return None
    try:
        values: dict[str, Any] = json.loads((root / FOLDER / "state.json").read_text(encoding="utf-8"))
        return Services(**{**values, "overrides": tuple(values["overrides"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # they are about to start


def mlflow_address(tracking: TrackingSettings, root: Path) -> str:
    """Where MLflow's pages are: the tracking server's, or those of the running services; "" if nobody serves them."""
    uri = tracking.uri or ""
    if uri.startswith(("http://", "https://")):
        return uri.rstrip("/")
    services = running_services(root)
    return services.mlflow if services and _shown_by(services, root) == mlflow_place(uri, root) else ""


def mlflow_place(uri: str | None, root: Path) -> str:
    """Which MLflow a tracking URI means, without who asks: no user, no password. "" is the run root's own."""
    if not uri or uri == f"sqlite:///{root}/mlflow.db":
        return ""
    parts = urlsplit(uri)
    host, colon, port = parts.netloc.rpartition("@")[2].partition(":")
    return f"{parts.scheme}://{'127.0.0.1' if host == 'localhost' else host}{colon}{port}{parts.path}".rstrip("/")


def same_places(place: str, root: Path) -> set[str]:
    """All names of an MLflow: the services of a run root show a database under an address of their own."""
    services = running_services(root)
    names = {_shown_by(services, root), mlflow_place(services.mlflow, root)} if services else set()
    return names if place in names else {place}


def other_mlflow(tracking: TrackingSettings, root: Path) -> str:
    """A warning where the running services show another MLflow than a run writes to; "" where all is well."""
    services = running_services(root)
    ours = mlflow_place(tracking.uri, root)
    if services is None or _shown_by(services, root) in same_places(ours, root):
        return ""
    own = "that of the run root"
    shown = _shown_by(services, root) or own
    return (
        f"this run writes to another MLflow ({ours or own}) than the services show ({shown}); the same tracking.uri "
        f"for both brings them together"
    )


def _shown_by(services: Services, root: Path) -> str:
    """The MLflow that the services were started with."""
    typed = [text.partition("=")[2].strip("'\"") for text in services.overrides if text.startswith("tracking.uri=")]
    uri = typed[-1] if typed else ""
    return mlflow_place("" if uri == "null" else uri, root)


def _held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
