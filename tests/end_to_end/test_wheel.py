"""A wheel built from the repository works outside the checkout, from any directory."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The wheel, unpacked alone into a directory."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    for name in ("rloo_core", "pipelines", "conf"):
        shutil.copytree(REPOSITORY / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--target", str(place / "site"), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, capture_output=True)
    return place / "site"


def run(site, tmp_path, code):
    environment = {**os.environ, "PYTHONPATH": str(site), "HOME": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


def test_configs_are_found_and_every_experiment_is_there(site, tmp_path):
    process = run(
        site, tmp_path,
        "import pipelines, pipelines.cli, sys; print(pipelines.__file__);"
        "sys.argv = ['rloo', 'config', 'experiment=tiny']; pipelines.cli.main()",
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert str(site) in process.stdout.splitlines()[0]
    assert "name: tiny" in process.stdout
    packaged = {path.name for path in (site / "pipelines" / "conf" / "experiment").iterdir()}
    assert packaged >= {path.name for path in (REPOSITORY / "conf" / "experiment").glob("*.yaml")}


def test_a_stage_runs_from_it(site, tmp_path):
    arguments = ["rloo", "run", "experiment=tiny", "--until", "data", "--no-prefect"]
    process = run(site, tmp_path, f"import sys, pipelines.cli; sys.argv = {arguments}; pipelines.cli.main()")
    assert process.returncode == 0, process.stdout + process.stderr
    assert (tmp_path / "runs" / "store" / "data").is_dir()
