"""Files: whole or absent, locked, and their SHA-256, remembered so that large ones are read once."""

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rloo_core.files import fsync

SMALL = 1 << 20  # bytes; smaller files are hashed every time, so that no clock's resolution matters for them


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """SHA-256 of a text in UTF-8, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that is there completely or not at all, even after a power cut or on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel frees it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class DigestCache:
    """Digests of large files, kept in one JSON file below the run root. A lost or damaged file only costs time."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "sha256.json"

    def sha256(self, path: Path) -> str:
        """SHA-256 of the file, from memory where path, size and time of change are those of last time."""
        state = path.stat()
        if state.st_size < SMALL:
            return sha256_of(path)
        key, stamp = str(path.resolve()), [state.st_size, state.st_mtime_ns]
        known = self._read().get(key)
        if known is not None and known[:2] == stamp:
            return str(known[2])
        digest = sha256_of(path)
        with suppress(OSError):  # a run root that cannot be written, or is full: it is hashed again next time
            write_atomically(self._file, json.dumps(self._read() | {key: [*stamp, digest]}, indent=0))
        return digest

    def _read(self) -> dict[str, list[object]]:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}
