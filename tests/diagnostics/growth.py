"""How much a long training adds to the databases: `python -m tests.diagnostics.growth [--steps N] [--lines N]`.

A policy stage that computes nothing reports as many steps, of 20 metrics each, as a long training does, through the
real tracking and as a real flow on a temporary Prefect server; with `--lines` it also says a line at that many steps.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATABASES = {"mlflow.db": "mlflow.db*", "prefect.db": "prefect/prefect.db*"}
METRICS = 20


def main() -> None:
    """Measure sizes before and after, print what was added."""
    parser = argparse.ArgumentParser(prog="python -m tests.diagnostics.growth", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--inside", type=Path, default=None, help="run root, in the process that is measured")
    options = parser.parse_args()
    if options.inside is not None:
        sys.exit(report(options.inside, options.steps, options.lines))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        inside(root, 0, 0)  # makes the databases
        start, sizes = time.monotonic(), size_of(root)
        inside(root, options.steps, options.lines)
        took = time.monotonic() - start
        print(f"{options.steps} steps of {METRICS} metrics, {options.lines} lines said; {took:.0f} s")
        for database, size in size_of(root).items():
            print(f"{database:<11} {sizes[database] / 1e6:6.1f} MB before, {(size - sizes[database]) / 1e6:6.1f} more")


def inside(root: Path, steps: int, lines: int) -> None:
    """A run in a process of its own."""
    command = [sys.executable, "-m", "tests.diagnostics.growth", "--steps", str(steps), "--lines", str(lines)]
    subprocess.run([*command, "--inside", str(root)], check=True, stdout=subprocess.DEVNULL)


def size_of(root: Path) -> dict[str, int]:
    """Bytes of each database, with what SQLite keeps beside it."""
    return {name: sum(file.stat().st_size for file in root.glob(files)) for name, files in DATABASES.items()}


def report(root: Path, steps: int, lines: int) -> int:
    """Run the pipeline on stages that compute nothing. Returns its exit code."""
    import pytest

    from pipelines.config import load_settings
    from pipelines.plan import Selection
    from pipelines.runner import run_pipeline
    from rloo_core.observer import Observer
    from tests.pipelines import fake_stages
    from tests.pipelines.conftest import install_fake_stages

    original = fake_stages.run

    def long(settings: object, inputs: object, out: object, observer: Observer) -> dict[str, float]:
        if type(settings).__name__ == "PolicyStageSettings":
            for step in range(1, steps + 1):
                observer.metrics(step, {f"group/metric_{number}": step / (number + 1) for number in range(METRICS)})
                observer.progress(step, steps, "reward 0.5")
                if step <= lines:
                    observer.message(f"step {step} of {steps}: something that fills a line, as people write them")
        return original(settings, inputs, out, observer)  # type: ignore[arg-type]

    install_fake_stages(pytest.MonkeyPatch())
    fake_stages.run = long  # type: ignore[assignment]
    overrides = ["experiment=tiny", f"seed={min(steps, 1)}", f"paths.root={root}"]
    return run_pipeline(load_settings(overrides), overrides, Selection(until="policy"), use_prefect=True)


if __name__ == "__main__":
    main()
