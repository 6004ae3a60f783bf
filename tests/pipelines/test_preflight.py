"""Before any work: a run root that can be written, a Prefect server that answers; and a disk that fills up."""

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pipelines import preflight
from pipelines.digests import SMALL, DigestCache, sha256_of
from pipelines.preflight import NotReady, check_prefect_server, check_root, disk_full, is_full
from pipelines.process import log_file
from pipelines.tracking.journal import Journal, Line

ANSWERS = {"/api/health": (200, b"true"), "/health": (200, b"<!doctype html>"), "/locked/health": (401, b"")}


@pytest.fixture
def server() -> Iterator[str]:
    """A server that looks like Prefect's: health below /api, a page elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = ANSWERS.get(self.path, (404, b""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_a_healthy_server(server: str) -> None:
    check_prefect_server(f"{server}/api")
    check_prefect_server(f"{server}/api/")
    check_prefect_server(f"{server}/locked")  # Prefect's client may have the key


def refusal(url: str) -> str:
    with pytest.raises(NotReady) as caught:
        check_prefect_server(url)
    text = str(caught.value)
    assert text.startswith(f"PREFECT_API_URL={url} ")
    assert text.endswith("; start that server, unset PREFECT_API_URL for a temporary one, or run with --no-prefect")
    assert "\n" not in text
    return text


def test_a_server_of_something_else(server: str) -> None:
    assert "is no Prefect API; it usually ends in /api" in refusal(server)
    assert "answers with HTTP status 404; it usually ends in /api" in refusal(f"{server}/elsewhere")


def test_a_dead_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert "does not answer" in refusal(f"http://127.0.0.1:{port}/api")


def test_a_server_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "HEALTH_SECONDS", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "timed out" in refusal(f"http://127.0.0.1:{silent.getsockname()[1]}/api")


@pytest.mark.parametrize(
    "url", ["nonsense", "file:///etc/passwd", "http://", "http://[::1", "http://a:b/api", "http://a b/"]
)
def test_what_is_no_address(url: str) -> None:
    refusal(url)


def test_a_root_that_can_be_written_is_left_with_its_logs_alone(tmp_path: Path) -> None:
    check_root(tmp_path / "runs")
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["logs"]


def test_a_root_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "logs" / "x"))

    monkeypatch.setattr(preflight.tempfile, "TemporaryFile", read_only)
    with pytest.raises(NotReady) as caught:
        check_root(tmp_path)
    assert str(caught.value) == f"paths.root={tmp_path} cannot be written: Permission denied; set paths.root"


def test_a_full_disk_is_found_in_whatever_wraps_it() -> None:
    wrapped = RuntimeError("failed")
    wrapped.__context__ = OSError(errno.ENOSPC, "No space left on device")
    for error in (wrapped, OSError(errno.EDQUOT, "Disk quota exceeded"), Exception("(x) database or disk is full")):
        assert is_full(error)
    assert not is_full(OSError(errno.EACCES, "Permission denied"))
    itself = ValueError("a circle")
    itself.__context__ = wrapped.__cause__ = RuntimeError("x")
    itself.__context__.__context__ = itself
    assert not is_full(itself)


def test_a_full_disk_in_one_line(tmp_path: Path) -> None:
    text = disk_full(OSError(errno.ENOSPC, "No space left on device", "store/x"), tmp_path / "not" / "there")
    assert text.startswith(f"the disk is full: paths.root={tmp_path}/not/there has ")
    assert "store/x could not be written" in text
    assert "\n" not in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_logs_and_journals_on_a_full_disk_end_quietly(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with log_file(Path("/dev/full")):
        logging.getLogger("rloo").info("lost")
    (tmp_path / "log").mkdir()
    with log_file(tmp_path / "log"):  # cannot even be opened
        logging.getLogger("rloo").info("lost")
    journal = Journal(tmp_path / "metrics.jsonl")
    journal._file.close()
    journal._file = Path("/dev/full").open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 (the journal closes it)
    with pytest.raises(OSError, match="No space left"):
        journal.write(Line(1, {"loss": 1.0}, 0))
    journal.close()
    assert capfd.readouterr() == ("", "")
    assert logging.raiseExceptions


def test_a_digest_that_cannot_be_remembered_is_still_right(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory would be")
    large = tmp_path / "large"
    large.write_bytes(b"x" * SMALL)
    assert DigestCache(tmp_path / "cache").sha256(large) == sha256_of(large)
