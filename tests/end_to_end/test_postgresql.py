"""Prefect and MLflow on a real PostgreSQL, MLflow's files on an S3-compatible server: by settings alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.databases import PASSWORD, PostgreSQL, postgresql, s3
from tests.end_to_end.services import SMALL, Machine, machine


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgreSQL]:
    with postgresql(tmp_path_factory.mktemp("database")) as server:
        yield server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("postgresql")


def test_a_run_with_both_databases_on_postgresql_and_artifacts_on_s3(database: PostgreSQL, place: Path) -> None:
    with s3("bucket") as (keys, files):
        environment = {**keys, "PGPASSFILE": str(database.passfile)}
        where = "tracking.artifacts=s3://bucket/mlflow"
        with machine(place / "machine", *database.overrides, where, environment=environment) as here:
            run = here.start("full", experiment="tiny", overrides=SMALL)
            assert here.wait_for(run, "COMPLETED", "FAILED", "CRASHED")[1] == "Completed", here.ask(f"flow_runs/{run}")
            assert set(here.stages(run).values()) == {"Completed"}
            _nothing_on_sqlite(here)
            _no_secret_is_written(here, keys["AWS_SECRET_ACCESS_KEY"])
        stored = [each["Key"] for each in files.list_objects_v2(Bucket="bucket")["Contents"]]
    assert database.query("mlflow", "select status, count(*) from runs group by status") == ["FINISHED|6"]
    assert database.query("mlflow", "select count(*) from model_versions") == ["3"]
    assert database.query("prefect", "select state_name, count(*) from task_run group by state_name") == ["Completed|5"]
    for wanted in ("model.safetensors", "config.yaml", "tables/samples.json", "figures/reward_and_kl.png"):
        assert any(key.startswith("mlflow/") and key.endswith(wanted) for key in stored), wanted


def _nothing_on_sqlite(here: Machine) -> None:
    assert not [path for path in here.root.rglob("*.db") if path.name in ("mlflow.db", "prefect.db")]
    assert not (here.root / "artifacts").exists()


def _no_secret_is_written(here: Machine, secret: str) -> None:
    for path in here.root.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert secret.encode() not in content, path
            assert PASSWORD.encode() not in content, path
