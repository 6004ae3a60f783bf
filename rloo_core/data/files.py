"""Which local files the data comes from, and what their names say. Imports no heavy library."""

import re
from pathlib import Path

from rloo_core.settings import DataSettings

FORMATS = (".jsonl", ".json", ".csv", ".parquet")
SOURCES = ("synthetic", "hh", "tldr", "tables")
TABLES = ("prompts", "demonstrations", "preferences")
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
# Files by which `datasets.Dataset.save_to_disk` and `DatasetDict.save_to_disk` directories are known.
SAVED_DATASET = ("state.json", "dataset_dict.json")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def data_files(settings: DataSettings) -> list[Path]:
    """Every local file that the data stage would read, in a fixed order; none for synthetic data and hub ids.

    Raises:
        ValueError: If `settings.path` is missing, or names nothing readable.
    """
    found: list[Path] = []
    for entry in data_entries(settings):
        if isinstance(entry, Path):
            found += sorted(file for file in entry.rglob("*") if file.is_file()) if entry.is_dir() else [entry]
    return found


def data_entries(settings: DataSettings) -> list[Path | str]:
    """What `settings.path` names: files, saved-dataset directories (both as paths), and hub ids (as text).

    The path is one file, directory or hub id, or several with commas between. Of a directory whose files are named
    after tables (preferences-train.jsonl.gz) those are read, else every file in a known format, also in its folders.

    Raises:
        ValueError: If the path is missing, or names nothing readable.
    """
    if settings.source == "synthetic":
        return []
    if settings.source not in SOURCES:  # a function of the user's reads the path in its own way, if it needs one
        return [Path(settings.path)] if settings.path is not None and Path(settings.path).exists() else []
    if settings.path is None:
        raise ValueError(
            f"data.source={settings.source} needs data.path: a directory, a file ({', '.join(FORMATS)}, also .gz), a "
            "saved dataset, or the id of a dataset on the hub; got null."
        )
    parts = [settings.path] if Path(settings.path).exists() else [part.strip() for part in settings.path.split(",")]
    return [entry for part in parts for entry in _entries_of(part)]


def table_of_name(path: Path) -> str | None:
    """The table that a file or saved dataset is named after, e.g. preferences for preferences-train.jsonl.gz."""
    return next((table for table in TABLES if path.name.lower().startswith(table)), None)


def split_of_name(path: Path) -> str | None:
    """The split that a file's name tells, e.g. test for helpful-base-test.jsonl.gz."""
    words = re.split(r"[^a-z]+", path.name.lower())
    return next((SPLIT_WORDS[word] for word in reversed(words) if word in SPLIT_WORDS), None)


def format_of(path: Path) -> str | None:
    """The format a file's name tells (.gz looked through), or None if it is not one that can be read."""
    name = path.name.lower().removesuffix(".gz")
    return next((suffix for suffix in FORMATS if name.endswith(suffix)), None)


def is_saved_dataset(path: Path) -> bool:
    """Whether the directory was written by `save_to_disk` of the datasets library."""
    return any((path / name).is_file() for name in SAVED_DATASET)


def _entries_of(part: str) -> list[Path | str]:
    path = Path(part).expanduser()
    if path.is_dir():
        return [path] if is_saved_dataset(path) else list(_directory_entries(path))
    if path.is_file():
        if format_of(path) is None:
            raise ValueError(f"data.path={part} is in no known format; expected {', '.join(FORMATS)}, also .gz.")
        return [path]
    if HUB_ID.fullmatch(part) and not part.startswith((".", "~")) and format_of(path) is None:
        return [part]
    raise ValueError(
        f"data.path={part} does not exist; looked for a directory, a file ({', '.join(FORMATS)}, also .gz) or a saved "
        f"dataset there (as {path.resolve()}), or the id of a dataset on the hub (owner/name)."
    )


def _directory_entries(directory: Path) -> list[Path]:
    saved = [path for path in sorted(directory.rglob("*")) if path.is_dir() and is_saved_dataset(path)]
    inside = {folder for dataset in saved for folder in (dataset, *(p for p in dataset.rglob("*") if p.is_dir()))}
    tops = [path for path in saved if not any(path != other and path.is_relative_to(other) for other in saved)]
    files = [
        path
        for path in sorted(directory.rglob("*"))
        if path.is_file() and format_of(path) and path.parent not in inside and not _hidden(path, directory)
    ]
    entries = sorted(tops + files)
    named = [path for path in entries if table_of_name(path)]
    if not entries:
        raise ValueError(
            f"data.path={directory} holds nothing readable; looked for files in the formats {', '.join(FORMATS)} "
            "(also .gz) and saved datasets, in the directory and its folders."
        )
    return named or entries


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
