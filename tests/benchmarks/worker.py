"""One measurement in a process of its own: `python -m tests.benchmarks.worker ours|peer NAME`; prints JSON."""

import importlib
import json
import sys

import torch

from tests.benchmarks.cases import CASES, GROWTH


def main(side: str, name: str) -> None:
    torch.set_num_threads(1)
    case = GROWTH[name] if name in GROWTH else CASES[name][0]
    found = importlib.import_module(f"tests.benchmarks.{'ours' if side == 'ours' else 'peers'}").measure(case)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
