"""What all tests share: one torch thread, and runs of the tiny experiment as a person would start them."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault(
    "MPLCONFIGDIR", tempfile.mkdtemp(prefix="matplotlib-")
)  # its font cache: not in the home directory

REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True)
class Run:
    """A finished command: where it ran, its run root, what it printed."""

    place: Path
    root: Path
    process: "subprocess.CompletedProcess[str]"

    @property
    def output(self) -> str:
        return self.process.stdout + self.process.stderr


def rloo(place: Path, *arguments: str, root: str = "runs", timeout: int = 1800, path: Path | None = None) -> Run:
    """Run the `rloo` command in an empty directory, with an empty home, away from the checkout.

    `path` holds packages that are installed beside the project.
    """
    (place / "home").mkdir(parents=True, exist_ok=True)
    (place / "cwd").mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"PYTHONPATH": str(path)} if path is not None else {}
    command = [str(Path(sys.executable).parent / "rloo"), *arguments]
    process = subprocess.run(
        command, cwd=place / "cwd", env={**environment, "HOME": str(place / "home")}, capture_output=True, text=True,
        timeout=timeout, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Run(place, place / "cwd" / root, process)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`rloo run experiment=tiny`, once a test session, with Prefect's temporary server."""
    run = rloo(tmp_path_factory.mktemp("tiny"), "run", "experiment=tiny")
    assert run.process.returncode == 0, run.output
    return run


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout; tests that need it are skipped where it is absent."""
    path = REPOSITORY.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"real data is not there: {path}")
    return path
