"""What a stage left unfinished under other code, for a person who says that the change of code is harmless.

An error in a reward function stops a stage; mending the function changes the code, and with it the fingerprint under
which the checkpoints lie. `--accept-code` moves them to the new one.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.digests import write_atomically
from pipelines.store import CHECKPOINTS, LOGS, Store

PARTS = "parts.json"  # among a stage's logs: what the fingerprint of its work directory was made from
ACCEPTED = "accepted.json"  # beside it, once the work has been taken over


@dataclass(frozen=True)
class Unfinished:
    """Work under another fingerprint, which differs in code alone."""

    fingerprint: str
    parts: Mapping[str, Any]


def note_parts(work: Path, parts: Mapping[str, Any]) -> None:
    """Let a work directory say what it is the work of."""
    (work / LOGS).mkdir(parents=True, exist_ok=True)
    write_atomically(work / LOGS / PARTS, json.dumps(parts, indent=1))


def find_unfinished(store: Store, stage: str, fingerprint: str, parts: Mapping[str, Any]) -> Unfinished | None:
    """The newest checkpoints that another code of the same stage has left; None if there are some of this one."""
    folder = store.root / "work" / stage
    if _last_written(folder / fingerprint) is not None:
        return None
    found: list[tuple[float, Unfinished]] = []
    for work in folder.glob("*"):
        with suppress(OSError, ValueError):
            earlier = json.loads((work / LOGS / PARTS).read_text(encoding="utf-8"))
            written = _last_written(work)
            if written is not None and without_code(earlier) == without_code(parts):
                found.append((written, Unfinished(work.name, earlier)))
    return max(found, key=lambda each: each[0])[1] if found else None


def take_up(store: Store, stage: str, unfinished: Unfinished, fingerprint: str, changed: Sequence[str]) -> bool:
    """Move the work to a new fingerprint; the caller holds both locks. Returns whether it was still there."""
    old, new = store.root / "work" / stage / unfinished.fingerprint, store.work(stage, fingerprint)
    if _last_written(old) is None:
        return False
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    note = {"from": unfinished.fingerprint, "at": now, "changed": list(changed)}
    write_atomically(old / LOGS / ACCEPTED, json.dumps(note, indent=1))
    store.discard_work(stage, fingerprint)
    old.rename(new)
    return True


def accepted(work: Path) -> dict[str, Any] | None:
    """What was declared harmless while this work was done; None if nothing was."""
    try:
        note: dict[str, Any] = json.loads((work / LOGS / ACCEPTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return note


def without_code(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a fingerprint that are no code."""
    return {key: value for key, value in parts.items() if not key.startswith("code/")}


def _last_written(work: Path) -> float | None:
    """When the newest checkpoint was written (seconds); None if there is none."""
    times = [path.stat().st_mtime for path in (work / CHECKPOINTS).glob("[!.]*")]
    return max(times, default=None)
