"""Shared by the tests of `pipelines`: a migrated MLflow database to copy, and stages that cost nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines import fingerprint
from pipelines.config import load_settings
from rloo_core.stages import STAGES

FAKE = "tests.pipelines.fake_stages"


@pytest.fixture(scope="session")
def migrated_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a migrated, empty MLflow database: a copy saves each test a second."""
    from pipelines.tracking.connection import Connection  # MLflow reads its environment when it is imported

    root = tmp_path_factory.mktemp("mlflow")
    settings = load_settings(["experiment=tiny", f"paths.root={root}", "tracking.experiment=empty"])
    Connection(settings.tracking, root, warn=pytest.fail)
    return root


@pytest.fixture
def empty_mlflow(tmp_path: Path, migrated_mlflow: Path) -> Path:
    """A run root whose MLflow database is migrated and empty."""
    root = tmp_path / "runs"
    root.mkdir()
    for part in migrated_mlflow.glob("mlflow.db*"):
        shutil.copy(part, root)
    return root


def install_fake_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `fake_stages` in the place of every stage."""
    for name, stage in STAGES.items():
        monkeypatch.setitem(STAGES, name, replace(stage, module=FAKE))
    packages = {**fingerprint.core_packages(), "tests": Path(__file__).parents[1]}
    monkeypatch.setattr(fingerprint, "core_packages", lambda: packages)
