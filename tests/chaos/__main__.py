"""Kills the tiny run again and again, at any instant, and looks at what is left: `python -m tests.chaos --kills 40`.

Each attempt is a process of its own, forked from one that has the libraries loaded; it is killed with SIGKILL where its
order says, and the next attempt goes on. When a run is done it must be as if nothing had happened.
"""

import argparse
import collections
import collections.abc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

from tests.chaos.inspection import Reference, left_processes, reference_of, troubles
from tests.chaos.orders import PLACES, Measured, Order, count, make_orders, spring

EXPERIMENT = ["experiment=tiny"]
ATTEMPTS = 200  # of one run, before this gives up


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="how many SIGKILLs")
    parser.add_argument("--prefect", type=int, default=10, help="how many of them hit a Prefect flow")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--directory", type=Path, default=None, help="for the run roots; a temporary one by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rloo-chaos-") as temporary:
        return chaos(options.directory or Path(temporary), make_orders(options.kills, options.prefect, options.seed))


def chaos(directory: Path, orders: list[Order]) -> int:
    """Carry out all orders, in as many runs as it takes. Returns an exit code."""
    load_libraries()
    started = time.monotonic()
    measured, reference = undisturbed(directory / "undisturbed")
    waiting = collections.deque(orders)
    done: collections.Counter[tuple[str, bool]] = collections.Counter()
    found: list[str] = []
    rounds = 0
    while waiting:
        rounds += 1
        root = directory / f"round-{rounds}"
        found += one_run(root, waiting, done, measured, reference)
    for place in PLACES:
        print(f"{place:<14} {done[place, False]:>3} kills without Prefect, {done[place, True]:>3} with")
    took = time.monotonic() - started
    print(f"{sum(done.values())} kills over {rounds} runs in {took:.0f} s; {len(found)} things wrong")
    return 1 if found else 0


def one_run(
    root: Path,
    waiting: "collections.deque[Order]",
    done: "collections.Counter[tuple[str, bool]]",
    measured: Measured,
    reference: Reference,
) -> list[str]:
    """One run until it is done, with as many of the orders as can be carried out. Returns what is wrong."""
    unused: list[Order] = []
    found: list[str] = []
    for attempt in range(ATTEMPTS):
        order = waiting.popleft() if waiting else None
        code, entered = run(root, order, measured, attempt)
        if code == -signal.SIGKILL and order is not None and entered:
            done[order.place, order.prefect] += 1
            found += left_processes(root, f"{root.name}, attempt {attempt}")
            continue
        if order is not None:
            sooner = order.fraction / 2  # or what was measured while the machine was busy might never come about
            unused.append(replace(order, fraction=sooner))
        if code != 0:
            found.append(
                f"{root.name}, attempt {attempt}: exit code {code}\n{(root.parent / 'log').read_text()[-3000:]}"
            )
        break
    waiting.extend(unused)
    if not found:
        found += troubles(root, reference)
    print(f"{root.name}: {attempt + 1} attempts; {'; '.join(found) or 'as if nothing had happened'}", flush=True)
    return found


def run(root: Path, order: Order | None, measured: Measured, attempt: int) -> tuple[int, bool]:
    """One attempt in a forked process. Returns its exit code (negative: a signal) and whether its place was entered."""
    notes = root.parent / f"{root.name}.entered"
    notes.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        become_a_run(root)
        spring(order, measured, notes)
        start(root, prefect=order is not None and order.prefect)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, notes.exists()


def undisturbed(root: Path) -> tuple[Measured, Reference]:
    """The run that all others must equal, and how long its parts take."""
    report = root.parent / "measured.json"
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        become_a_run(root)
        counts: dict[str, int] = {}
        for place in ("checkpoint", "publish", "registration"):
            count(place, counts)
        start(root, prefect=False, at_end=lambda: report.write_text(json.dumps(counts)))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    whole = time.monotonic() - started
    if code != 0:
        raise RuntimeError(f"the undisturbed run ended with {code}: {(root.parent / 'log').read_text()[-3000:]}")
    calls = json.loads(report.read_text())
    reference = reference_of(root)
    print(f"undisturbed: {whole:.0f} s; calls inside: {calls}", flush=True)
    return Measured(calls, reference.seconds["evaluation"], whole), reference


def become_a_run(root: Path) -> None:
    """A session, a log and an environment of its own, as a process has that a person starts."""
    os.setsid()
    root.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(root.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def start(root: Path, prefect: bool, at_end: "collections.abc.Callable[[], object]" = lambda: None) -> None:
    """Run the pipeline and end the process."""
    from pipelines import runner
    from pipelines.config import load_settings
    from pipelines.plan import Selection

    code = 70
    try:
        overrides = [*EXPERIMENT, f"paths.root={root}"]
        code = runner.run_pipeline(load_settings(overrides), overrides, Selection(), use_prefect=prefect)
        at_end()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def load_libraries() -> None:
    """All that is slow to import and does nothing when it is; not Prefect, which reads its environment then."""
    from pipelines import environment

    environment.prepare(Path("/nonexistent"))
    for name in ("PREFECT_HOME", "MPLCONFIGDIR", "PREFECT_API_URL"):
        os.environ.pop(name, None)
    import mlflow  # noqa: F401

    import rloo_core.stages
    import rloo_core.trainer

    for stage in rloo_core.stages.STAGES.values():
        stage.load()


if __name__ == "__main__":
    sys.exit(main())
