"""Freed memory is used again while a training loop runs, and given back when it ends."""

import resource
from pathlib import Path

import pytest
import torch

from rloo_core import cpu_memory
from rloo_core.cpu_memory import kept_memory

PAGES = 2**14  # of 4 kB: 64 MB

pytestmark = pytest.mark.skipif(cpu_memory._glibc() is None, reason="only glibc has the options")


def faults(pages=PAGES):
    """Pages the system hands out while some are taken, written and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(pages * 1024)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_memory_is_not_asked_for_anew():
    with kept_memory():
        faults(3 * PAGES)
        assert faults() < PAGES / 10


def test_memory_is_given_back():
    before = resident()
    with kept_memory():
        faults()
        assert resident() > before + PAGES / 2
    assert resident() < before + PAGES / 2


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(cpu_memory, "_glibc", lambda: None)
    with kept_memory():
        assert torch.ones(2).sum() == 2
