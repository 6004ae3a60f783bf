"""After a run root was moved: MLflow's database names its files by absolute address, and is told the new one.

The store, the records and the checkpoints name nothing absolute and need nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, Table, create_engine, select, update
from sqlalchemy.engine import Engine

from pipelines.config_errors import Refused
from pipelines.service_addresses import running_services
from rloo_core.settings import ExperimentSettings

# Where MLflow keeps addresses of files: table, column.
ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_model_tags", "tag_value"),
    ("model_version_tags", "value"),
    ("datasets", "dataset_source"),
)


class NotMoved(Refused):
    """There is nothing to correct, or it cannot be done now; the message says which."""


@dataclass(frozen=True)
class Move:
    """A run root was there and is here now."""

    old: Path
    new: Path

    def corrected(self, text: str) -> str:
        """The text with the old place replaced where it stands as a whole path, or the beginning of one."""
        for old, new in ((self.old.as_uri(), self.new.as_uri()), (str(self.old), str(self.new))):
            text = _replaced(text, old, new)
        return text


def relocate(settings: ExperimentSettings, old: str | None, say: Callable[[str], None]) -> None:
    """Correct the addresses in MLflow's database, all in one transaction.

    Args:
        settings: `paths.root` is where the run root is now.
        old: Where it was; None to take it from the database.
        say: Is told what was changed.

    Raises:
        NotMoved: If nothing is to be done, the services run, or a server keeps the database.
    """
    root = Path(settings.paths.root)
    engine = _database(settings, root)
    places = {Path(old)} if old else moved_from(engine, root)
    if not places:
        raise NotMoved(f"MLflow's addresses are those of {root} already; nothing is to be done")
    if len(places) > 1:
        listed = ", ".join(map(str, sorted(places)))
        raise NotMoved(f"MLflow's database names several places: {listed}; say which with --from")
    move = Move(places.pop(), root)
    with engine.begin() as connection:
        changed = sum(_correct(connection, table, column, move) for table, column in ADDRESSES)
    say(f"{changed} addresses changed from {move.old} to {move.new}")
    say("deployments carry the run root, too: `rloo services up` makes them anew")


def moved_from(engine: Engine, root: Path) -> set[Path]:
    """Run roots that the experiments' artifact locations name and that are not this one."""
    experiments = Table("experiments", MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        locations = [row[0] or "" for row in connection.execute(select(experiments.c.artifact_location))]
    files = [Path(location.removeprefix("file://")) for location in locations if location.startswith("file:///")]
    return {file.parent for file in files if file.name == "artifacts"} - {root}


def _database(settings: ExperimentSettings, root: Path) -> Engine:
    uri = settings.tracking.uri or f"sqlite:///{root}/mlflow.db"
    if uri.startswith(("http://", "https://")):
        raise NotMoved(f"tracking.uri={uri} is a server, whose files lie elsewhere; nothing is to be done")
    if settings.tracking.uri is None and not (root / "mlflow.db").exists():
        raise NotMoved(f"there is no run in {root}; name the moved run root: rloo relocate paths.root=...")
    if running_services(root) is not None:
        raise NotMoved("the services run; stop them first: rloo services down")
    return create_engine(uri)


def _correct(connection: Connection, name: str, column: str, move: Move) -> int:
    """Correct one column of one table; the number of rows changed."""
    table = Table(name, MetaData(), autoload_with=connection)
    keys = list(table.primary_key.columns)
    held = connection.execute(select(table).where(table.c[column].contains(str(move.old), autoescape=True)))
    changed = 0
    for row in held.mappings().all():
        new = move.corrected(row[column])
        if new != row[column]:
            where: Any = [key == row[key.name] for key in keys]
            connection.execute(update(table).where(*where).values({column: new}))
            changed += 1
    return changed


def _replaced(text: str, old: str, new: str) -> str:
    """Replace `old` where it ends at the end of a path component."""
    parts = text.split(old)
    result = parts[0]
    for part in parts[1:]:
        whole = not part or part[0] in "/\"' \n"
        result += (new if whole else old) + part
    return result
