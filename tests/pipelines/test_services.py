"""`rloo services up`, before anything is started."""

import os
import sys
from pathlib import Path

import pytest

from pipelines import services
from pipelines.config import load_settings
from tests.end_to_end.services import free_port


class Replaced(Exception):
    """A process that is replaced does not come back."""


def test_in_the_foreground_the_keeper_takes_the_place_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "runs"
    ports = [f"services.{name}_port={free_port()}" for name in ("prefect", "mlflow")]

    def replace(program: str, command: list[str]) -> None:
        assert command == [program, "-m", "pipelines.services_keeper", str(root)]
        assert program == sys.executable
        raise Replaced

    monkeypatch.setattr(os, "execv", replace)
    monkeypatch.setattr(services, "prepare_tracking", lambda settings, say: (root / "services").mkdir(exist_ok=True))
    monkeypatch.setattr(services, "_own_environment", lambda root, environ: None)
    with pytest.raises(Replaced):
        services.up(load_settings([f"paths.root={root}", *ports]), [], foreground=True, say=print)
    assert (root / "services" / "spec.json").is_file()
