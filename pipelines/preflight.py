"""What must hold before any work: the run root can be written, and the Prefect server, where one is named, answers.

Also what is said when the disk fills up later.
"""

import errno
import http.client
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HEALTH_SECONDS = 5.0
FULL = (errno.ENOSPC, errno.EDQUOT)
FULL_WORDS = ("disk is full", "no space left on device", "disk quota exceeded")  # SQLite's, C's; wrapped by others
CLOUD = "https://api.prefect.cloud/"  # its workspaces have no health page


class NotReady(Exception):
    """The run cannot start; the message is one line and says it all."""


def check_root(root: Path) -> None:
    """Make the run root and its `logs`, and write into them.

    Raises:
        NotReady: If that is impossible; the message names `paths.root`.
    """
    try:
        (root / "logs").mkdir(parents=True, exist_ok=True)
        for folder in (root, root / "logs"):
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
    except OSError as error:
        if is_full(error):
            raise NotReady(disk_full(error, root)) from error
        raise NotReady(f"paths.root={root} cannot be written: {error.strerror or error}; set paths.root") from error


def check_prefect_server(url: str) -> None:
    """Ask the server of PREFECT_API_URL for its health.

    Raises:
        NotReady: If nothing answers there within a few seconds, or something that is no Prefect server.
    """
    problem = server_trouble(url)
    if problem:
        raise NotReady(
            f"PREFECT_API_URL={url} {problem}; start that server, unset PREFECT_API_URL for a temporary one, or run "
            f"with --no-prefect"
        )


def server_trouble(url: str) -> str | None:
    """What is wrong with a Prefect server: the predicate of a sentence about its URL; None if it answers."""
    if url.startswith(CLOUD):
        return None
    if not url.startswith(("http://", "https://")):
        return "is no address of a Prefect server, such as http://127.0.0.1:4200/api"
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=HEALTH_SECONDS) as answer:
            healthy = answer.read(100).strip() == b"true"
    except urllib.error.HTTPError as error:
        refused = (401, 403)  # it is there, and wants a key that Prefect's client has
        return None if error.code in refused else f"answers with HTTP status {error.code}; it usually ends in /api"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"does not answer ({getattr(error, 'reason', None) or error or type(error).__name__})"
    return None if healthy else "is no Prefect API; it usually ends in /api"


def is_full(error: BaseException) -> bool:
    """Whether a full disk is behind an error, however wrapped."""
    return any(
        (isinstance(each, OSError) and each.errno in FULL) or any(word in str(each).lower() for word in FULL_WORDS)
        for each in _chain(error)
    )


def disk_full(error: BaseException, root: Path) -> str:
    """One line about a full disk: which, and what to do."""
    named = next((each.filename for each in _chain(error) if isinstance(each, OSError) and each.filename), None)
    where = f"; {named} could not be written" if named else ""
    return (
        f"the disk is full: paths.root={root} has {_free_megabytes(root)} MB left{where}. Make room, or set paths.root "
        f"to another disk; the same command goes on from what is finished"
    )


def _free_megabytes(root: Path) -> int:
    there = next(place for place in (root, *root.parents) if place.exists())
    return shutil.disk_usage(there).free // 1_000_000


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those it came from."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop(0)
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__]
