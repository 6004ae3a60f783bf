"""What Prefect, MLflow and Hydra add to `rloo run experiment=tiny`: `python -m tests.diagnostics.overhead [ROUNDS]`.

Against the same stages, called from `rloo_core` in one process. Seconds without the time for which the main thread
waited for a core (Linux: /proc/thread-self/schedstat), so that other work counts less; medians over rounds.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

WAYS = {"without Prefect": ["--no-prefect"], "a temporary server": []}
RUNNING = "a running server"  # measured where PREFECT_API_URL names one


def call_stages(settings_file: Path, place: Path) -> None:
    """The five stages with nothing around them."""
    from rloo_core.observer import SilentObserver
    from rloo_core.settings import ExperimentSettings
    from rloo_core.stages import STAGES

    settings = ExperimentSettings.model_validate_json(settings_file.read_text(encoding="utf-8"))
    for name, stage in STAGES.items():
        (place / name).mkdir()
        inputs = {each: place / each for each in stage.inputs}
        stage.load()(stage.settings(settings), inputs, place / name, SilentObserver())  # type: ignore[arg-type]


def seconds(place: Path, arguments: list[str], environment: dict[str, str]) -> float:
    """Wall time of this module as a program, less what its main thread waited for a core."""
    started = time.time()
    command = [sys.executable, "-m", "tests.diagnostics.overhead", "--inside", str(place / "waited"), *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.time() - started - float((place / "waited").read_text())


def inside(waited: Path, arguments: list[str]) -> None:
    """In the process that is measured."""
    try:
        if arguments[0] == "stages":
            call_stages(Path(arguments[1]), Path(arguments[2]))
        else:
            from pipelines.cli import main as rloo

            sys.argv = ["rloo", *arguments]
            rloo()
    finally:
        waited.write_text(str(int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9))


def main(rounds: int) -> None:
    """Measure in turn, print medians."""
    from pipelines.config import load_settings

    server = os.environ.get("PREFECT_API_URL")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    clean |= {"OMP_NUM_THREADS": "1"}
    ways = {**WAYS, **({RUNNING: []} if server else {})}
    found: dict[str, list[float]] = {name: [] for name in ("the stages alone", *ways)}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for seed in range(-1, rounds):  # the first makes the databases
            typed = ["experiment=tiny", f"seed={seed + 1}"]
            (place / "settings.json").write_text(load_settings(typed).model_dump_json(), encoding="utf-8")
            (place / f"stages{seed}").mkdir()
            alone = ["stages", str(place / "settings.json"), str(place / f"stages{seed}")]
            took = {"the stages alone": seconds(place, alone, clean)}
            for way, options in ways.items():
                environment = {**clean, "PREFECT_API_URL": server or ""} if way == RUNNING else clean
                run = ["run", *typed, *options, "--force", "data", f"paths.root={place / way.replace(' ', '_')}"]
                took[way] = seconds(place, run, environment)
            if seed >= 0:
                for way, each in took.items():
                    found[way].append(each)
    base = median(found["the stages alone"])
    for way, values in found.items():
        print(f"{way:<20} {median(values):6.1f} s   adds {median(values) - base:5.1f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
