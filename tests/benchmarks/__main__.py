"""Ours against the peers: `python -m tests.benchmarks [--json FILE] [--repeats N] [NAME ...]`.

Each side runs in processes of its own, turn and turn about, one thread each; what is compared are medians of processor
time over all steps but each process's first. A peer that is the same for two benchmarks runs once for both. Nothing is
installed: what is missing is said. Names may be cut short: `growth` is every growth_….
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from tests.benchmarks.cases import CASES, GROWTH, HEAD, PEER, Case
from tests.benchmarks.ours import floor_seconds

Measured = dict[str, list[float] | float]

TRL = "1.16"
LONGEST = 900  # seconds of a process
HEADER = f"{'name':18} {'ours':>9} {'peer':>9} {'ratio':>7}  unit"


class NoResultError(Exception):
    """A process that measured nothing, and why."""


def measure(side: str, name: str) -> Measured:
    """One process's measurement.

    Raises:
        NoResultError: If it fails, or takes longer than LONGEST.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.worker", side, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise NoResultError(f"{side} took more than {LONGEST} s of wall time") from None
    if done.returncode != 0:
        raise NoResultError(f"{side}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
    found: Measured = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(name: str, repeats: int, known: dict[Case, list[Measured]]) -> list[dict[str, object]]:
    """The rows of one benchmark.

    Args:
        name: Of the case.
        repeats: Processes a side.
        known: What the peer took for the same case in this run, whatever our sampler's precision was; added to.
    """
    case, peer = CASES[name]
    same = replace(case, low_precision=False)
    sides = ["ours"] if peer is None or same in known else ["ours", "peer"]
    runs = [(side, measure(side, name)) for _ in range(repeats) for side in sides]
    if peer is not None:
        known.setdefault(same, [run for side, run in runs if side == "peer"])
        runs, sides = [run for run in runs if run[0] == "ours"] + [("peer", r) for r in known[same]], ["ours", "peer"]
    cpu = {side: [t for s, run in runs if s == side for t in run["cpu"]] for side in sides}  # type: ignore[union-attr]
    wall = {side: [t for s, run in runs if s == side for t in run["wall"]] for side in sides}  # type: ignore[union-attr]
    memory = {side: max(run["memory"] for s, run in runs if s == side) for side in sides}  # type: ignore[type-var]
    if peer is None:
        steps = [pair for _, run in runs for pair in zip(run["cpu"], run["rates"], strict=True)]  # type: ignore[arg-type]
        shares = [floor_seconds(case, rate) / seconds for seconds, rate in steps]
        share = f"share of the matmul floor, {_range(shares)}"
        unit = f"s CPU a step, {_spread(cpu)}, wall {_range(wall['ours'])}; ratio: {share}"
        return [_row(name, median(cpu["ours"]), None, median(shares), unit)]
    rows = [
        _row(name, median(cpu["ours"]), median(cpu["peer"]), None, f"s CPU a step, {_spread(cpu)}"),
        _row(f"{name}/wall", median(wall["ours"]), median(wall["peer"]), None, f"s wall a step, {_spread(wall)}"),
    ]
    label = name.replace("step_", "memory_") if name.startswith("step_") else f"{name}/memory"
    return [*rows, _row(label, float(memory["ours"]), float(memory["peer"]), None, "GB resident at most")]  # type: ignore[arg-type]


def grow(repeats: int) -> list[dict[str, object]]:
    """Our time a completion token as K and T grow; the peer's column is the best of the series."""
    rows = []
    for series in ("growth_k", "growth_t"):
        names = [name for name in GROWTH if name.startswith(series)]
        found = {name: [measure("ours", name) for _ in range(repeats)] for name in names}
        tokens = {n: GROWTH[n].prompts * GROWTH[n].group_size * GROWTH[n].new_tokens for n in names}
        each = {n: 1e3 * median(t for run in found[n] for t in run["cpu"]) / tokens[n] for n in names}  # type: ignore[union-attr]
        for name in names:
            memory = max(float(run["memory"]) for run in found[name])  # type: ignore[arg-type]
            cpu, wall = (
                [1e3 * t / tokens[name] for run in found[name] for t in run[clock]]  # type: ignore[union-attr]
                for clock in ("cpu", "wall")
            )
            unit = f"ms CPU a completion token, {_range(cpu)}, wall {_range(wall)}; {memory:.2f} GB"
            rows.append(_row(name, each[name], min(each.values()), None, unit))
    return rows


def choose(name: str, repeats: int) -> list[dict[str, object]]:
    """Drawing a decoding step's tokens, by truncation; the peer is the head's product that gave their logits."""
    found = [measure("ours", name) for _ in range(repeats)]
    times = {kind: [1e3 * t for run in found for t in run[kind]] for kind in found[0]}  # type: ignore[union-attr]
    head = times.pop("head")
    return [
        _row(f"{name}/{kind}", median(ours), median(head), None, f"ms CPU, ours {_range(ours)}, head {_range(head)}")
        for kind, ours in times.items()
    ]


def _rows(name: str, repeats: int, known: dict[Case, list[Measured]]) -> list[dict[str, object]]:
    if name == "growth":
        return grow(repeats)
    return choose(name, repeats) if CASES[name][1] == HEAD else compare(name, repeats, known)


def _row(name: str, ours: float, peer: float | None, ratio: float | None, unit: str) -> dict[str, object]:
    ratio = peer / ours if ratio is None and peer is not None else ratio
    row = {"name": name, "ours": ours, "peer": peer, "ratio": ratio, "unit": unit}
    print(f"{name:18} {ours:9.3f} {peer if peer is not None else float('nan'):9.3f} {ratio:7.2f}  {unit}", flush=True)
    return row


def _spread(values: dict[str, list[float]]) -> str:
    return ", ".join(f"{side} {_range(v)}" for side, v in values.items())


def _range(values: list[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def _missing(names: list[str]) -> str | None:
    if not any(name in CASES and CASES[name][1] == PEER for name in names):
        return None
    if importlib.util.find_spec("trl") is None:
        return "trl is not installed: pip install -e '.[benchmarks]' -c constraints.txt"
    version = importlib.metadata.version("trl")
    return None if version.startswith(TRL) else f"trl is {version}; the comparison is with {TRL}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*CASES, 'growth'])}; all by default")
    parser.add_argument("--json", type=Path, help="file for the table as a list of {name, ours, peer, ratio, unit}")
    parser.add_argument("--repeats", type=int, default=2, help="processes a side")
    options = parser.parse_args()
    every = [*CASES, "growth"]
    names = [name for name in every if not options.names or any(name.startswith(n) for n in options.names)]
    missing = _missing(names)
    if missing is not None:
        raise SystemExit(missing)
    print(HEADER)
    rows: list[dict[str, object]] = []
    known: dict[Case, list[Measured]] = {}
    for name in names:
        try:
            rows += _rows(name, options.repeats, known)
        except NoResultError as error:
            print(f"{name:18} no result: {error}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
