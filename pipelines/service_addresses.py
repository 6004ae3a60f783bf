"""Where the services of this machine listen, and whether they do. Standard library only.

services/lock        held by the process that looks after the services
services/state.json  its process id, and the addresses
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rloo_core.settings import ExperimentSettings

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


def running_services(root: Path) -> Services | None:
    """The services that were started for a run root and still run."""
    if not _held(root / FOLDER / "lock"):
        return None
    try:
        values: dict[str, Any] = json.loads((root / FOLDER / "state.json").read_text(encoding="utf-8"))
        return Services(**{**values, "overrides": tuple(values["overrides"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None  # they are about to start


def mlflow_address(settings: ExperimentSettings) -> str:
    """Where MLflow's pages are: the tracking server's, or those of the running services; "" if nobody serves them."""
    uri = settings.tracking.uri or ""
    if uri.startswith(("http://", "https://")):
        return uri.rstrip("/")
    services = running_services(Path(settings.paths.root))
    return services.mlflow if services else ""


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
