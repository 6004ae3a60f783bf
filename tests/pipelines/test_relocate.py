"""A run root that was moved: MLflow's addresses are corrected, and nothing else needs to be."""

import shutil
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, select

from pipelines.config import load_settings
from pipelines.relocate import Move, NotMoved, relocate
from pipelines.tracking.connection import Connection, TrackingError

MOVE = Move(Path("/data/runs"), Path("/new/place"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/runs", "/new/place"),
        ("file:///data/runs/artifacts/1", "file:///new/place/artifacts/1"),
        ('{"uri": "/data/runs/store/data/1", "rows": 3}', '{"uri": "/new/place/store/data/1", "rows": 3}'),
        ("/data/runs2/artifacts", "/data/runs2/artifacts"),
        ("s3://bucket/artifacts", "s3://bucket/artifacts"),
    ],
)
def test_whole_paths_are_replaced(text: str, expected: str) -> None:
    assert MOVE.corrected(text) == expected


def everything(root: Path) -> str:
    """All text in MLflow's database."""
    engine = create_engine(f"sqlite:///{root}/mlflow.db")
    tables = MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        return "\n".join(str(row) for table in tables.tables.values() for row in connection.execute(select(table)))


@pytest.fixture
def moved(tmp_path: Path, empty_mlflow: Path) -> Path:
    """A run root with a run, a model and a dataset that was moved after they were made."""
    root = tmp_path / "before"
    empty_mlflow.rename(root)
    settings = load_settings([f"paths.root={root}"])
    relocate(settings, None, lambda text: None)  # the database is a copy of another one
    connection = Connection(settings.tracking, root, warn=pytest.fail)
    client = connection.client
    run = client.create_run(connection.experiment_id).info.run_id
    client.log_text(run, "text", "note.txt")
    model = client.create_logged_model(connection.experiment_id, name="policy", source_run_id=run)
    client.set_logged_model_tags(model.model_id, {"store": f"{root}/store/policy/1"})
    client.create_registered_model("policy")
    client.create_model_version("policy", model.artifact_location, run)
    root.rename(tmp_path / "after")
    return tmp_path / "after"


def test_a_run_in_a_moved_root_says_what_to_do(moved: Path) -> None:
    settings = load_settings([f"paths.root={moved}"])
    with pytest.raises(TrackingError, match="this run root was moved or copied; correct that with `rloo relocate`"):
        Connection(settings.tracking, moved, warn=pytest.fail)
    assert not (moved.parent / "before").exists()


def test_every_address_is_corrected_and_files_are_found_again(moved: Path, tmp_path: Path) -> None:
    settings = load_settings([f"paths.root={moved}"])
    said: list[str] = []
    relocate(settings, None, said.append)
    assert said[0].endswith(f"addresses changed from {tmp_path}/before to {moved}")
    assert f"{tmp_path}/before" not in everything(moved)
    connection = Connection(settings.tracking, moved, warn=pytest.fail)
    (run,) = connection.client.search_runs([connection.experiment_id])
    local = connection.client.download_artifacts(run.info.run_id, "note.txt", str(tmp_path))
    assert Path(local).read_text() == "text"


def test_a_second_time_and_a_root_without_runs_are_refused(moved: Path, tmp_path: Path) -> None:
    settings = load_settings([f"paths.root={moved}"])
    relocate(settings, None, lambda text: None)
    with pytest.raises(NotMoved, match="already; nothing is to be done"):
        relocate(settings, None, pytest.fail)
    with pytest.raises(NotMoved, match="there is no run in"):
        relocate(load_settings([f"paths.root={tmp_path / 'empty'}"]), None, pytest.fail)


def test_a_copy_leaves_the_original_alone(moved: Path, tmp_path: Path) -> None:
    relocate(load_settings([f"paths.root={moved}"]), None, lambda text: None)
    copy = tmp_path / "copy"
    shutil.copytree(moved, copy)
    relocate(load_settings([f"paths.root={copy}"]), None, lambda text: None)
    assert f"{moved}/" not in everything(copy)
    assert f"{copy}/" not in everything(moved)
