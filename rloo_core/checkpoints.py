"""Checkpoints that are whole or absent, and the newest of which is never deleted before the next one stands."""

import json
import shutil
from pathlib import Path

from accelerate import Accelerator

from rloo_core.files import fsync

STATE = "loop.json"


def fsync_tree(directory: Path) -> None:
    """Force every file below a directory, and the directories themselves, to the disk."""
    for path in [*directory.rglob("*"), directory]:
        fsync(path)


def save_checkpoint(accelerator: Accelerator, directory: Path, step: int, state: dict[str, object], keep: int) -> Path:
    """Write model, optimiser and schedule as of the end of a step, then drop the oldest checkpoints.

    The checkpoint is written under a temporary name, forced to disk and renamed; only then older ones go.

    Args:
        accelerator: Holds the prepared model and optimiser.
        directory: Where the stage keeps its checkpoints.
        step: Steps done.
        state: What the stage itself remembers, JSON values.
        keep: Checkpoints to keep, the newest first.

    Returns:
        The checkpoint's directory.
    """
    final = directory / f"step-{step:08d}"
    temporary = directory / f".{final.name}.tmp"
    if accelerator.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(temporary), safe_serialization=True)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (temporary / STATE).write_text(json.dumps({"step": step, "state": state}))
        fsync_tree(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        fsync(directory)
        for old in sorted(directory.glob("step-*"))[:-keep]:
            shutil.rmtree(old)
    return final


def load_newest_checkpoint(accelerator: Accelerator, directory: Path) -> tuple[int, dict[str, object]] | None:
    """Restore the newest checkpoint into the prepared model, optimiser and schedule.

    Returns:
        Steps done and the stage's own state, or None if there is no checkpoint.
    """
    found = sorted(directory.glob("step-*"))
    if not found:
        return None
    accelerator.load_state(str(found[-1]))
    loop = json.loads((found[-1] / STATE).read_text())
    return loop["step"], loop["state"]
