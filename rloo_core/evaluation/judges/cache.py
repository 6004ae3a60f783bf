"""Answers of a paid judge, kept on disk by the content of the question, so that nothing is asked twice."""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import NamedTuple

FILE = "answers.sqlite"


class Answer(NamedTuple):
    """A reply and what it took."""

    text: str
    prompt_tokens: int
    completion_tokens: int


def content_key(request: Mapping[str, object]) -> str:
    """SHA-256 of everything an answer depends on."""
    return hashlib.sha256(json.dumps(request, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class AnswerCache:
    """Answers in one SQLite file; each is on disk before `put` returns, and survives the process however it ends.

    Several threads and processes may use one directory at once.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / FILE
        self._lock = Lock()
        self._database = sqlite3.connect(self.path, timeout=60.0, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, request TEXT, text TEXT, "
            "prompt_tokens INTEGER, completion_tokens INTEGER)"
        )

    def get(self, key: str) -> Answer | None:
        """The answer to a question, if it was asked before."""
        with self._lock:
            row = self._database.execute(
                "SELECT text, prompt_tokens, completion_tokens FROM answers WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else Answer(*row)

    def put(self, key: str, request: Mapping[str, object], answer: Answer) -> None:
        """Keep an answer; the first one stays."""
        values = (key, json.dumps(request, ensure_ascii=False), *answer)
        with self._lock:
            self._database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", values)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()
