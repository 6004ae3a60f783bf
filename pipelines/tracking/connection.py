"""One client for one run: which server or database, and in which experiment."""

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from copy import copy
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from pipelines.artifact_root import artifact_root
from pipelines.digests import locked
from pipelines.service_addresses import mlflow_place, same_places
from rloo_core.settings import TrackingSettings

# What the server answers when it will never do what was asked; everything else may be different in a minute.
REFUSALS = frozenset(
    {
        "INVALID_PARAMETER_VALUE",
        "RESOURCE_DOES_NOT_EXIST",
        "RESOURCE_ALREADY_EXISTS",
        "INVALID_STATE",
        "BAD_REQUEST",
    }
)


TRAINING = {"mlflow.experimentKind": "custom_model_development"}  # else its pages guess, and show those for chatbots


class TrackingError(RuntimeError):
    """MLflow could not be opened."""


class Connection:
    """An `MlflowClient` and the experiment it writes to.

    Every call names its run; nothing here or elsewhere uses MLflow's active run.
    """

    def __init__(self, settings: TrackingSettings, root: Path, warn: Callable[[str], None]) -> None:
        self.place = mlflow_place(settings.uri, root)
        self.places = same_places(self.place, root)
        self.uri = settings.uri or f"sqlite:///{root}/mlflow.db"
        self.warn = warn
        self.experiment = settings.experiment
        self._artifacts = artifact_root(settings, root)
        self._below_root = settings.uri is None and settings.artifacts is None
        try:
            self.client = open_client(self.uri, root)
            self.experiment_id = self.find_experiment()
        except Exception as error:
            raise TrackingError(
                f"MLflow at {self.uri} cannot be used: {first_line(error)}. Start the server, or set tracking.uri "
                f"to another one; tracking.uri=null keeps everything in {root}/mlflow.db."
            ) from error

    @property
    def is_local(self) -> bool:
        """Whether this process talks to the database itself, not to a server."""
        return not self.uri.startswith(("http://", "https://"))

    def of(self, experiment: str) -> "Connection":
        """The same MLflow, another experiment."""
        if experiment == self.experiment:
            return self
        other = copy(self)
        other.experiment = experiment
        other.experiment_id = other.find_experiment()
        return other

    def find_experiment(self) -> str:
        """Id of the experiment, made if needed; restored, and said, if somebody has deleted it."""
        client, name = self.client, self.experiment
        found = client.get_experiment_by_name(name)
        if found is None:
            return _create_experiment(client, name, self._artifacts)
        if found.lifecycle_stage != "active":
            client.restore_experiment(found.experiment_id)
            self.warn(f"the experiment {name!r} had been deleted in MLflow, and was restored with its runs")
        if self._below_root and found.artifact_location != self._artifacts:
            raise ValueError(
                f"it keeps its files in {found.artifact_location}, so this run root was moved or copied; correct that "
                f"with `rloo relocate` and the same paths.root"
            )
        return str(found.experiment_id)


def is_refusal(error: BaseException) -> bool:
    """Whether MLflow answered that it will never do this, as opposed to being away."""
    return isinstance(error, MlflowException) and error.error_code in REFUSALS


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def open_client(uri: str, root: Path) -> MlflowClient:
    """A client whose database exists and is migrated; only one process at a time migrates."""
    if uri.startswith(("http://", "https://")):
        return MlflowClient(uri, uri)
    if not uri.startswith("sqlite:///"):
        with locked(root / "mlflow.lock"):
            client = MlflowClient(uri, uri)
            client.search_experiments(max_results=1)
        return client
    database = Path(uri.removeprefix("sqlite:///")).absolute()
    database.parent.mkdir(parents=True, exist_ok=True)
    with locked(database.with_name(database.name + ".lock")):
        if not database.exists():
            _make_database(database)
        client = MlflowClient(f"sqlite:///{database}", f"sqlite:///{database}")
        client.search_experiments(max_results=1)
    return client


def _make_database(database: Path) -> None:
    """A migrated, empty database, there at once: MLflow cannot go on with one whose first migration was killed."""
    with tempfile.TemporaryDirectory(dir=database.parent, prefix=f".{database.name}.") as folder:
        first, whole = Path(folder) / "first.db", Path(folder) / "whole.db"
        MlflowClient(f"sqlite:///{first}", f"sqlite:///{first}").search_experiments(max_results=1)
        with closing(sqlite3.connect(first)) as source, closing(sqlite3.connect(whole)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode=WAL")  # persistent, and 1.3 to 3.8 times faster
        whole.replace(database)


def _create_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    try:
        return str(client.create_experiment(name, artifact_location=artifacts, tags=TRAINING))
    except MlflowException:  # another run created it in this moment
        found = client.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)
