"""A stage for `test_launched.py` that does next to nothing, in as many processes as it is started in."""

import os
import signal
import time
from pathlib import Path

from matplotlib.figure import Figure

RANK, COUNT = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def run(settings, inputs, out, observer):
    """Report, or come to grief as the input `trouble` says."""
    (out / f"pid-{RANK}").write_text(str(os.getpid()))
    trouble = inputs.get("trouble", Path("none")).name
    if trouble == "value error in 1":
        _wait_for_all(out)
        if RANK == 1:
            raise ValueError("the second process found a wrong value; set it right")
        time.sleep(600)
    if trouble == "killed" and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble in ("waits", "killed"):
        time.sleep(600)
    print("printed by a process")
    for step in (1, 2):
        observer.metrics(step, {"loss/mean": step + RANK})
        observer.progress(step, 2, "half [way]")
    observer.message(f"there are {COUNT}")
    observer.table("samples", [{"prompt": "å", "completion": RANK}])
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2])
    observer.figure("curve", figure)
    return {"epochs": settings.sft.epochs, "rank": RANK}


def _wait_for_all(out):
    while len(list(out.glob("pid-*"))) < COUNT:
        time.sleep(0.02)
