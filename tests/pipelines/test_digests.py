"""Files are there completely or not at all."""

import errno
import os

import pytest

from pipelines.digests import write_atomically


@pytest.mark.parametrize("content", ["π", b"\x89PNG"])
def test_a_file_is_written_with_its_folder(tmp_path, content):
    path = tmp_path / "a" / "file"
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()  # a team reads what the run root holds


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file"
    write_atomically(path, "before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "after")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
