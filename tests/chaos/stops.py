"""Ends the tiny run in ways a person or a machine does, and goes on: `python -m tests.chaos.stops DIRECTORY`.

Prints one JSON object a trouble. The trouble comes from the run's own reward function, once there is a checkpoint. Each
attempt is `rloo run` in a process of its own, forked from one that has the libraries loaded.
"""

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.chaos.__main__ import become_a_run, load_libraries
from tests.chaos.inspection import left_processes
from tests.end_to_end.services import SMALL

REWARD = '''
"""A reward function, and what ends the run while it is used: the environment's TROUBLE."""
import errno, os, signal
from pathlib import Path


def short(prompts, completions, **columns):
    if list(Path.cwd().glob("runs/work/policy/*/checkpoints/step-*")):
        TROUBLES[os.environ["TROUBLE"]]()
    return [-float(len(text)) for text in completions]


def fail():
    raise ZeroDivisionError("no luck today")


def fill_the_disk():
    from rloo_core import checkpoints

    def full(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))

    checkpoints.fsync_tree = full


TROUBLES = {
    "none": lambda: None,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "Ctrl-C": lambda: os.kill(os.getpid(), signal.SIGINT),
    "an error": fail,
    "a full disk": fill_the_disk,
}
'''
TROUBLES = ("SIGTERM", "Ctrl-C", "an error", "a full disk")
STEPS = 6
TYPED = [
    "run", "experiment=tiny", *SMALL, "reward_model=none", "reward.terms=['mine:short']", f"algorithm.steps={STEPS}",
    "algorithm.checkpoint_every=2", "--until", "policy", "--no-prefect",
]  # fmt: skip


def main(place: Path) -> None:
    """One undisturbed run; then, for each trouble, the policy made anew in the same run root."""
    load_libraries()
    (place / "mine.py").write_text(REWARD)
    code, text = attempt(place, "none", *TYPED)
    assert code == 0, text
    for trouble in TROUBLES:
        before = manifest(place)
        code, text = attempt(place, trouble, *TYPED, "--force", "policy")
        found: dict[str, Any] = {"trouble": trouble, "code": code, "said": text, "status": statuses(place)[0]}
        found["code of the next"], found["next said"] = attempt(
            place, "none", "run", "--resume", "last", "--no-prefect"
        )
        after = manifest(place)
        found |= {"anew": before["run_id"] != after["run_id"], "same bits": before["digest"] == after["digest"]}
        found |= {"statuses": statuses(place), "steps": steps(place, after["run_id"])}
        found["left"] = [str(each) for each in (place / "runs" / "work").glob("*/*")] + left_processes(place, trouble)
        print(json.dumps(found), flush=True)


def attempt(place: Path, trouble: str, *arguments: str) -> tuple[int, str]:
    """`rloo` with these arguments, in a directory. Returns its exit code and what it said."""
    (place / "log").unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        become_a_run(place / "runs")
        os.chdir(place)
        os.environ["TROUBLE"] = trouble
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # ignored, where a shell started this in the background
        typed(*arguments)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, (place / "log").read_text()


def typed(*arguments: str) -> None:
    """A command, after which this process ends."""
    from pipelines.cli import main as rloo

    code = 70
    try:
        sys.argv = ["rloo", *arguments]
        rloo()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def manifest(place: Path) -> dict[str, Any]:
    """Of the policy."""
    (file,) = (place / "runs" / "store" / "policy").glob("*/manifest.json")
    return dict(json.loads(file.read_text()))


def statuses(place: Path) -> list[str]:
    """Of all runs in MLflow; the newest run of the policy stage first."""
    newest = "select run_uuid from tags where key = 'stage' and value = 'policy'"
    return _asked(place, f"select status from runs order by run_uuid in ({newest}) desc, start_time desc")


def steps(place: Path, run_id: str) -> list[int]:
    """Of a metric of a run, in order."""
    return _asked(place, f"select step from metrics where key = 'reward/mean' and run_uuid = '{run_id}' order by step")


def _asked(place: Path, question: str) -> list[Any]:
    """The first column. Not through MLflow's client, whose connections would be inherited by the forked attempts."""
    with closing(sqlite3.connect(place / "runs" / "mlflow.db")) as database:
        return [row[0] for row in database.execute(question)]


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
