"""How much of the disk a run root takes, by what it is for. Files with several names (hard links) count once."""

import os
from collections.abc import Iterator
from pathlib import Path

PARTS = {
    "store": "finished outputs",
    "work": "unfinished work, with its checkpoints",
    "artifacts": "MLflow's files, copies of models among them",
    "mlflow.db": "MLflow's database",
    "prefect": "Prefect's home",
    "logs": "logs",
}
REST = "everything else"


def used(path: Path, seen: set[tuple[int, int]] | None = None) -> int:
    """Bytes of a file or of everything below a directory.

    Args:
        path: It need not exist.
        seen: Files that were counted already, by device and inode; added to.
    """
    seen = set() if seen is None else seen
    total = 0
    for state in _states(path):
        if (state.st_dev, state.st_ino) not in seen:
            seen.add((state.st_dev, state.st_ino))
            total += state.st_size
    return total


def usage(root: Path) -> dict[str, int]:
    """Bytes by what they are for (the values of `PARTS`, and `REST`); nothing for what is not there."""
    seen: set[tuple[int, int]] = set()
    named = {meaning: used(root / name, seen) for name, meaning in PARTS.items()}
    sizes = named | {REST: used(root, seen)}
    return {meaning: size for meaning, size in sizes.items() if size}


def in_words(size: int) -> str:
    """A number of bytes for people: 812 B, 4.1 MB."""
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" or value >= 100 else f"{value:.1f} {units[0]}"


def _states(path: Path) -> Iterator[os.stat_result]:
    try:
        if path.is_dir() and not path.is_symlink():
            for entry in os.scandir(path):
                yield from _states(Path(entry.path))
        else:
            yield path.lstat()
    except OSError:  # gone meanwhile
        return
