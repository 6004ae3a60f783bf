"""What processes of a pool do in tests: the errand's `until` says it. Run as a module, it is a parent to be killed."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipelines.process import sigterm_raises
from pipelines.studies.point import Errand, Returned
from pipelines.studies.pool import Pool

HERE = "tests.pipelines.studies.errands"


def errand(name, until, folder=""):
    return Errand(name, (str(folder),), until, record="", parent="")


def do(what: Errand) -> Returned:
    """Return, raise, die, or say in a file that it is there and wait to be stopped."""
    if what.until == "return":
        return Returned(what.name, {"policy": "abc"}, ("policy",), 1.5, 0.5)
    if what.until == "gpus":
        began = time.monotonic()  # the same clock in every process
        time.sleep(0.05)
        times = {"from": str(began), "to": str(time.monotonic())}
        return Returned(what.name, {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""), **times})
    if what.until == "raise":
        raise ValueError("no such thing")
    if what.until == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what.until == "leave":
        os._exit(7)
    if what.until == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return _wait(what)
    with sigterm_raises():
        return _wait(what)


def _wait(what: Errand) -> Returned:
    (Path(what.overrides[0]) / what.name).write_text(str(os.getpid()))
    time.sleep(600)
    return Returned(what.name)


if __name__ == "__main__":
    with Pool(do, [HERE]) as pool, ThreadPoolExecutor(2) as threads:
        list(threads.map(pool.run, [errand(name, "wait", sys.argv[1]) for name in ("a", "b")]))
