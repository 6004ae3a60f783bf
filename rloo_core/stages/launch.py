"""A stage in several processes: `accelerate launch … -m rloo_core.stages.launch FOLDER`.

Who starts the processes and they themselves share a private folder:

    request.json      which stage, its settings, its inputs, where to
    accelerate.json   how many processes; given by name, so that nobody's default config file takes part
    events            a pipe: one JSON line for each call of the observer, and the summary; the first process writes
    alive             a pipe that nothing is written to: it ends when the one who started them does
    figure-N.png      pictures
    error-N.json      what ended process N
"""

import importlib
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rloo_core.observer import Row, SilentObserver
from rloo_core.stages import STAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REQUEST, CONFIG, EVENTS, ALIVE = "request.json", "accelerate.json", "events", "alive"
FIGURE_DPI = 130
ORPHANED = 3  # exit code
CLEAR = (ValueError, TypeError, OSError, ImportError, SystemExit)  # errors that are raised again as what they were


def launch_command(folder: Path, processes: int, arguments: Sequence[str]) -> list[str]:
    """The command that runs a Python script or `-m module` in several processes of this machine.

    Args:
        folder: Where Accelerate's configuration is written.
        processes: How many.
        arguments: A script, or "-m" and a module, and its arguments.
    """
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",  # its name for torchrun; each process finds its own device, or the CPU
        "num_processes": processes,
        "num_machines": 1,
        "machine_rank": 0,
        "main_process_port": 0,  # a free one: launches side by side do not meet
        "mixed_precision": "no",  # a stage asks for its own
        "use_cpu": False,
        "gpu_ids": "all",
        "debug": False,
    }
    (folder / CONFIG).write_text(json.dumps(config))
    return [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(folder / CONFIG), *arguments,
    ]  # fmt: skip


def launch_environment(threads: int) -> dict[str, str]:
    """The environment of such a command: this one, its modules found where they are found here, loopback only."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": loopback,
    }


def write_request(
    folder: Path, stage: str, module: str, settings: Mapping[str, Any], inputs: Mapping[str, Path], out: Path
) -> None:
    """Say what the processes are to do.

    Args:
        folder: The shared folder.
        stage: Name of the stage.
        module: Where its function is.
        settings: The stage's settings, as JSON values.
        inputs: Directories of the stages it reads.
        out: Its directory.
    """
    request = {
        "stage": stage,
        "module": module,
        "settings": settings,
        "inputs": {name: str(path) for name, path in inputs.items()},
        "out": str(out),
    }
    (folder / REQUEST).write_text(json.dumps(request))


class EventWriter:
    """An observer that writes what it is told as JSON lines.

    Args:
        file: The pipe.
        folder: Where figures are written, as PNG.
    """

    def __init__(self, file: TextIO, folder: Path) -> None:
        self._file, self._folder, self._figures = file, folder, 0

    def write(self, kind: str, **values: object) -> None:
        """One event."""
        self._file.write(json.dumps({"kind": kind, **values}, default=str) + "\n")
        self._file.flush()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self.write("metrics", step=step, values={name: float(value) for name, value in values.items()})

    def table(self, name: str, rows: Sequence[Row]) -> None:
        self.write("table", name=name, rows=[dict(row) for row in rows])

    def figure(self, name: str, figure: "Figure") -> None:
        self._figures += 1
        path = self._folder / f"figure-{self._figures}.png"
        figure.savefig(path, dpi=FIGURE_DPI, bbox_inches="tight")
        self.write("figure", name=name, path=str(path))

    def progress(self, done: int, total: int, note: str = "") -> None:
        self.write("progress", done=done, total=total, note=note)

    def message(self, text: str) -> None:
        self.write("message", text=text)


def main(folder: Path) -> int:
    """Run the requested stage as one of its processes. Returns the exit code."""
    rank = int(os.environ.get("RANK", "0"))
    end_with_the_starter(folder / ALIVE)
    try:
        _run(json.loads((folder / REQUEST).read_text()), folder, rank)
    except BaseException as error:
        _report(error, folder, rank)
        return 1
    return 0


def _run(request: Mapping[str, Any], folder: Path, rank: int) -> None:
    """The first process reports; the others compute their share and stay silent."""
    stage = STAGES[request["stage"]]
    settings = stage.settings_type.model_validate_json(json.dumps(request["settings"]))
    inputs = {name: Path(path) for name, path in request["inputs"].items()}
    function = importlib.import_module(request["module"]).run
    if rank > 0:
        function(settings, inputs, Path(request["out"]), SilentObserver())
        return
    with (folder / EVENTS).open("w", encoding="utf-8") as file:
        observer = EventWriter(file, folder)
        summary = function(settings, inputs, Path(request["out"]), observer)
        observer.write("summary", values={name: float(value) for name, value in summary.items()})


def end_with_the_starter(pipe: Path) -> None:
    """End this process at once when nobody holds the other end of a pipe any more, however its holder ended.

    A process in a step of C code, or waiting for the others, cannot be asked politely; checkpoints are whole or absent.
    """
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for a writer who is gone already
    os.set_blocking(descriptor, True)

    def wait() -> None:
        os.read(descriptor, 1)
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True).start()


def _report(error: BaseException, folder: Path, rank: int) -> None:
    """Leave what happened for the starter; a stage that calls `sys.exit` has failed, too."""
    kinds = [kind.__name__ for kind in CLEAR if isinstance(error, kind)]
    found = {
        "time": time.time(),
        "kind": kinds[0] if kinds else None,
        "type": type(error).__name__,
        "message": str(error),
        "errno": getattr(error, "errno", None),
        "traceback": "".join(traceback.format_exception(error)),
    }
    temporary = folder / f".error-{rank}.json"
    temporary.write_text(json.dumps(found))
    temporary.rename(folder / f"error-{rank}.json")


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a process that failed must not wait for the others in the destructors of its connections
