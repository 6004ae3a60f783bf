"""Memory of tensors on a CPU is used again, not asked for anew.

glibc gives large blocks back to the system when they are freed, and the system clears new ones page by page:
each activation of a training step pays for its memory as if it were the first, 6 % of the processor time of a step of a
model with 70 million weights. While `kept_memory` is open, freed blocks stay with the process.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # options of mallopt(3)
KEEP = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}
# what glibc itself would have come to with large blocks, had it been left alone: 64 and 32 MB
AFTERWARDS = {TRIM_THRESHOLD: 2**26, MMAP_THRESHOLD: 2**25, MMAP_MAX: 2**16}


@contextmanager
def kept_memory() -> Iterator[None]:
    """While this is open, memory that is freed stays with the process; then it is given back. glibc only."""
    libc = _glibc()
    if libc is None:
        yield
        return
    for option, value in KEEP.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in AFTERWARDS.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def _glibc() -> Any:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
