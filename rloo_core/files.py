"""Files that survive a power cut. Imports no heavy library."""

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Force a file's content, or a directory's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
