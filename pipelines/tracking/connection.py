"""One client for one run: which server or database, in which experiment, and what happens when it is away."""

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rloo_core.settings import TrackingSettings

T = TypeVar("T")
PAUSE_SECONDS = 60.0  # how long a server is left alone after a call that failed slowly: it is away
SLOW_SECONDS = 5.0


class TrackingError(RuntimeError):
    """MLflow could not be opened."""


class Connection:
    """An `MlflowClient` that never raises into a training: a failure is told once, and a server
    that is away is left alone for a while.

    Every call names its run; nothing here or elsewhere uses MLflow's active run.
    """

    def __init__(self, settings: TrackingSettings, root: Path, warn: Callable[[str], None]) -> None:
        self.uri = settings.uri or f"sqlite:///{root}/mlflow.db"
        self._warn = warn
        self._warned = False
        self._paused_until = 0.0
        try:
            self.client = _open(self.uri)
            self.experiment_id = _experiment(
                self.client, settings.experiment, None if settings.uri else root / "artifacts"
            )
        except Exception as error:
            raise TrackingError(
                f"MLflow at {self.uri} cannot be used: {_first_line(error)}. Start the server, or set tracking.uri "
                f"to another one; tracking.uri=null keeps everything in {root}/mlflow.db."
            ) from error

    @property
    def is_local(self) -> bool:
        """Whether this process talks to the database itself, not to a server."""
        return not self.uri.startswith(("http://", "https://"))

    def attempt(self, what: str, call: Callable[[MlflowClient], T]) -> T | None:
        """Call MLflow; on any failure warn (once a run), pause, and return None."""
        started = time.monotonic()
        if started < self._paused_until:
            return None
        try:
            return call(self.client)
        except Exception as error:
            if time.monotonic() - started > SLOW_SECONDS:
                self._paused_until = time.monotonic() + PAUSE_SECONDS
            if not self._warned:
                self._warn(f"MLflow failed to {what}, and the run goes on without: {_first_line(error)}")
            self._warned = True
            return None


def _open(uri: str) -> MlflowClient:
    """A client whose database exists and is migrated; only one process at a time migrates."""
    if not uri.startswith("sqlite:///"):
        return MlflowClient(uri, uri)
    database = Path(uri.removeprefix("sqlite:///")).absolute()
    database.parent.mkdir(parents=True, exist_ok=True)
    with _locked(database.with_name(database.name + ".lock")):
        connection = sqlite3.connect(database)
        connection.execute("PRAGMA journal_mode=WAL")  # persistent, and 1.3 to 3.8 times faster
        connection.close()
        client = MlflowClient(f"sqlite:///{database}", f"sqlite:///{database}")
        client.search_experiments(max_results=1)
    return client


def _experiment(client: MlflowClient, name: str, artifacts: Path | None) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage != "active":
        raise ValueError(f"the experiment {name!r} was deleted; restore it in MLflow or set tracking.experiment")
    if found is not None:
        return str(found.experiment_id)
    try:
        location = artifacts.absolute().as_uri() if artifacts else None
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException:  # another run created it in this moment
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
