"""Algorithms side by side: `python -m tests.diagnostics.algorithm_table RUN_ROOT` prints a table of finished runs.

RUN_ROOT is the `paths.root` of `rloo run algorithm=NAME seed=S` for several names and seeds; where a name and seed were
run several times, the newest counts. Means over seeds with 95 % t intervals, which are wide for three seeds, and each
seed's win rate.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

BASE, WIN_RATE = "rloo", "win_rate"
COLUMNS = {"win_rate": ("win rate, %", 100.0, 1), "gold_reward": ("gold reward", 1.0, 2), "kl": ("KL, nats", 1.0, 2), "length": ("length, tokens", 1.0, 1)}  # fmt: skip # noqa: E501


def evaluations(root: Path) -> dict[tuple[str, int], Mapping[str, float]]:
    """Summaries of the evaluations in a store, by algorithm and seed."""
    found: dict[tuple[str, int], tuple[str, Mapping[str, float]]] = {}
    for path in (root / "store" / "evaluation").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        policy = root / "store" / "policy" / manifest["inputs"]["policy"]["fingerprint"] / "manifest.json"
        parts: Mapping[str, Any] = json.loads(policy.read_text())["parts"]
        key = (str(parts["settings/algorithm.name"]), int(parts["settings/algorithm.seed"]))
        if key not in found or found[key][0] < manifest["created"]:
            found[key] = (manifest["created"], manifest["summary"])
    return {key: summary for key, (_, summary) in found.items()}


def estimate(values: Sequence[float], scale: float, digits: int) -> str:
    """Mean and 95 % t interval over seeds."""
    scaled = scale * np.asarray(values)
    half = (
        stats.t.ppf(0.975, len(scaled) - 1) * scaled.std(ddof=1) / np.sqrt(len(scaled)) if len(scaled) > 1 else np.nan
    )
    return f"{scaled.mean():.{digits}f} ± {half:.{digits}f}"


def row(found: Mapping[tuple[str, int], Mapping[str, float]], name: str, label: str, prefix: str) -> str:
    """One line; the difference to RLOO is paired by seed."""
    seeds = [seed for other, seed in sorted(found) if other == name]
    values = {column: [found[name, seed][f"{prefix}/{column}"] for seed in seeds] for column in COLUMNS}
    cells = [estimate(values[column], scale, digits) for column, (_, scale, digits) in COLUMNS.items()]
    each = ", ".join(f"{100 * value:.0f}" for value in values["win_rate"])
    base = f"evaluation/policy/sampled/{WIN_RATE}"
    pairs = [
        found[name, seed][f"{prefix}/{WIN_RATE}"] - found[BASE, seed][base] for seed in seeds if (BASE, seed) in found
    ]
    difference = "–" if label == f"`{BASE}`" or not pairs else estimate(pairs, 100.0, 1)
    return f"| {label} | {cells[0]} | {each} | {difference} | {' | '.join(cells[1:])} |"


def main() -> None:
    found = evaluations(Path(sys.argv[1]))
    names = list(dict.fromkeys(name for name, _ in sorted(found)))
    headings = [heading for heading, _, _ in COLUMNS.values()]
    print(f"| | {headings[0]} | each seed | less {BASE}'s, points | {' | '.join(headings[1:])} |\n|{'---|' * 7}")
    print(row(found, BASE, "SFT, before", "evaluation/sft/sampled"))
    for name in names:
        print(row(found, name, f"`{name}`", "evaluation/policy/sampled"))


if __name__ == "__main__":
    main()
