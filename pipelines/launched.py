"""Runs a stage's function: in this process, or in several that `accelerate launch` starts (`compute.processes`)."""

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.fingerprint import resolved_device
from pipelines.store import LOGS
from rloo_core.observer import Observer
from rloo_core.settings import ComputeSettings, Settings, TrainingSettings
from rloo_core.stages import Stage
from rloo_core.stages.launch import (
    ALIVE,
    CLEAR,
    EVENTS,
    FIGURE_DPI,
    launch_command,
    launch_environment,
    write_request,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRACE_SECONDS = 10.0
LOG = Path(LOGS) / "processes.log"  # below a stage's directory: what the processes print


class ProcessFailed(Exception):
    """A process of a stage ended with an error that is none of `CLEAR`, or without a word."""


def run_stage(
    stage: Stage, settings: Settings, inputs: Mapping[str, Path], out: Path, observer: Observer
) -> dict[str, float]:
    """Call a stage's function in as many processes as its settings ask for; stages that do not train take one.

    Raises:
        ProcessFailed: If one of several processes fails; or what the first that failed raised.
    """
    compute: ComputeSettings | None = getattr(settings, "compute", None)
    if compute is None or compute.processes == 1 or not trains(stage):
        return stage.load()(settings, inputs, out, observer)
    _check_devices(compute)
    (out / LOG).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rloo-") as name, (out / LOG).open("a") as log:
        folder = Path(name)
        write_request(folder, stage.name, stage.module, settings.model_dump(mode="json"), inputs, out)
        with _pipes(folder) as events, _processes(folder, compute, log) as launcher:
            summary = _listen(events, launcher, observer)
        if launcher.returncode != 0 or summary is None:
            raise _error(folder, launcher.returncode, out / LOG)
        return summary


def trains(stage: Stage) -> bool:
    """Whether a stage has a training loop, whose work several processes can share."""
    sections = (field.annotation for field in stage.settings_type.model_fields.values())
    return any(isinstance(section, type) and issubclass(section, TrainingSettings) for section in sections)


def _check_devices(compute: ComputeSettings) -> None:
    """One device a process.

    Raises:
        ValueError: If there are fewer.
    """
    if resolved_device(compute.device) != "cuda":
        return
    import torch

    found = torch.cuda.device_count()
    if compute.processes > found:
        raise ValueError(
            f"compute.processes={compute.processes} needs as many CUDA devices, but torch finds {found}; set "
            f"compute.processes={max(found, 1)}, or compute.device=cpu"
        )


@contextmanager
def _pipes(folder: Path) -> Iterator[int]:
    """Both pipes, held open here; gives the one that is read. The processes end when the other one is closed."""
    for name in (EVENTS, ALIVE):
        os.mkfifo(folder / name)
    with ExitStack() as stack:
        events, alive = (os.open(folder / name, os.O_RDWR | os.O_NONBLOCK) for name in (EVENTS, ALIVE))
        stack.callback(os.close, events)
        stack.callback(os.close, alive)
        yield events


@contextmanager
def _processes(folder: Path, compute: ComputeSettings, log: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """The launcher, in a session of its own: Ctrl-C reaches this process only, which then ends the others."""
    command = launch_command(folder, compute.processes, ["-m", "rloo_core.stages.launch", str(folder)])
    launcher = subprocess.Popen(
        command, env=launch_environment(compute.threads), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield launcher
    finally:
        _end(launcher)


def _end(launcher: "subprocess.Popen[bytes]") -> None:
    """The launcher passes SIGTERM on; what outlives it ends when the pipe `alive` is closed."""
    if launcher.poll() is not None:
        return
    launcher.send_signal(signal.SIGTERM)
    try:
        launcher.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def _listen(events: int, launcher: "subprocess.Popen[bytes]", observer: Observer) -> dict[str, float] | None:
    """Pass on what the first process reports until the launcher ends; its summary."""
    summary: dict[str, float] | None = None
    rest = b""
    while True:
        ended = launcher.poll() is not None  # asked before the last look into the pipe
        select.select([events], [], [], 0 if ended else 0.1)
        *lines, rest = (rest + _read(events)).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event["kind"] == "summary":
                summary = event["values"]
            else:
                _pass_on(event, observer)
        if ended and not lines:
            return summary


def _read(events: int) -> bytes:
    try:
        return os.read(events, 1 << 20)
    except BlockingIOError:
        return b""


def _pass_on(event: dict[str, Any], observer: Observer) -> None:
    kind = event.pop("kind")
    if kind == "figure":
        event = {"name": event["name"], "figure": _picture(Path(event["path"]))}
    getattr(observer, kind)(**event)


def _picture(path: Path) -> "Figure":
    """A saved picture as a figure of its size."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    pixels = imread(path)
    height, width = pixels.shape[:2]
    figure = Figure(figsize=(width / FIGURE_DPI, height / FIGURE_DPI), dpi=FIGURE_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, interpolation="none", aspect="auto")
    axes.set_axis_off()
    return figure


def _error(folder: Path, code: int, log: Path) -> BaseException:
    """What the first process that failed raised; the others fail after it, for want of it."""
    found = [json.loads(path.read_text()) for path in folder.glob("error-*.json")]
    if not found:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return ProcessFailed(
            f"its processes ended ({ended}) without saying why; a process that is killed for want of memory ends so. "
            f"What they printed is in {log}; lower compute.max_tokens_per_batch or compute.processes"
        )
    first = min(found, key=lambda each: each["time"])
    kinds = {kind.__name__: kind for kind in CLEAR}
    error: BaseException
    if first["kind"] is None:
        error = ProcessFailed(f"{first['type']}: {first['message']}")
    elif first["errno"] is not None:
        error = OSError(first["errno"], first["message"])
    else:
        error = kinds[first["kind"]](first["message"])
    error.add_note(f"in a process of its own:\n{first['traceback']}")
    return error
