"""One errand in a Python process of its own, for workers of clusters, whose processes may not fork.

`python -m pipelines.studies.subprocesses FOLDER` makes the errand in `FOLDER/errand.json`.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from pipelines.studies.point import Errand, Returned, run_point
from pipelines.studies.pool import how_it_ended

ERRAND, RETURNED = "errand.json", "returned.json"


def in_subprocess(errand: Errand) -> Returned:
    """Start a process under a watchdog, so that it ends when this one does, and wait for it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rloo-") as name:
        folder = Path(name)
        (folder / ERRAND).write_text(json.dumps(asdict(errand)), encoding="utf-8")
        command = [sys.executable, "-m", "pipelines.studies.subprocesses", name]
        done = subprocess.Popen([sys.executable, "-m", "pipelines.watchdog", *command], stdin=subprocess.PIPE)
        code = done.wait()
        if (folder / RETURNED).exists():
            values = json.loads((folder / RETURNED).read_text(encoding="utf-8"))
            return Returned(**{**values, "computed": tuple(values["computed"])})
    return Returned(errand.name, seconds=time.monotonic() - started, error=how_it_ended(code))


def main(folder: Path) -> None:
    """Make the errand of a folder."""
    values = json.loads((folder / ERRAND).read_text(encoding="utf-8"))
    found = run_point(Errand(**{**values, "overrides": tuple(values["overrides"])}))
    (folder / RETURNED).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
