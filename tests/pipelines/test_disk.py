"""How much a run root takes."""

from pathlib import Path

import pytest

from pipelines.disk import in_words, usage, used


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a").write_bytes(b"x" * 1000)
    (tmp_path / "store" / "b").hardlink_to(tmp_path / "store" / "a")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "c").write_bytes(b"x" * 10)
    (tmp_path / "other").write_bytes(b"x" * 5)
    assert used(tmp_path) == 1015
    found = usage(tmp_path)
    assert found == {"finished outputs": 1000, "unfinished work, with its checkpoints": 10, "everything else": 5}


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (812, "812 B"), (4_100_000, "4.1 MB"), (250_000_000, "250 MB"), (2 * 10**15, "2000 TB")],
)
def test_in_words(size: int, words: str) -> None:
    assert in_words(size) == words
