"""A Prefect server for the length of one run: started early, in the background, and gone with us whatever happens."""

import fcntl
import http.client
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

STARTUP_SECONDS = 180.0


class ServerError(RuntimeError):
    """The temporary Prefect server did not come up."""


class Server(Protocol):
    """A Prefect server."""

    def wait(self) -> str:
        """Wait until it answers, and return its URL, as in PREFECT_API_URL."""

    def ended(self) -> bool:
        """Whether it is known to be gone for good."""


class NamedServer:
    """A server that somebody else runs; when it is away, it will come back."""

    def __init__(self, url: str) -> None:
        self.url = url

    def wait(self) -> str:
        """Its URL."""
        return self.url

    def ended(self) -> bool:
        """Never: who runs it starts it again."""
        return False


class TemporaryServer:
    """`prefect.server` on a free loopback port under a watchdog. Start it, do something else, then `wait`.

    Only one process at a time migrates a fresh database: the first start holds a lock until the server is healthy.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "logs" / "prefect-server.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Value for PREFECT_API_URL."""
        return f"http://127.0.0.1:{self.port}/api"

    def start(self) -> None:
        """Start the server process and return at once."""
        home = Path(os.environ["PREFECT_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock_first_start(home)
        self.port = _free_port()
        command = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--log-level", "warning", "--lifespan", "on"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.watchdog", sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )

    def wait(self, timeout: float = STARTUP_SECONDS) -> str:
        """Wait until the server answers, and return its URL.

        Raises:
            ServerError: If it ended, or did not answer in time; the message says where its log is.
        """
        assert self._process is not None, "start() comes before wait()"
        deadline = time.monotonic() + timeout
        while not _healthy(self.port):
            if self._process.poll() is not None:
                raise ServerError(self._trouble(f"ended with exit code {self._process.returncode}"))
            if time.monotonic() > deadline:
                raise ServerError(self._trouble(f"did not answer within {timeout:.0f} s"))
            time.sleep(0.05)
        self._unlock()
        return self.url

    def ended(self) -> bool:
        """Whether it has ended, or is being stopped."""
        return self._process is None or self._process.poll() is not None

    def stop(self) -> None:
        """Stop the server and wait until nothing of it is left."""
        self._unlock()
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._process = None

    def _trouble(self, what: str) -> str:
        return (
            f"The temporary Prefect server {what}; its log is {self.log}. Start again, run without Prefect "
            f"(--no-prefect), or name a running server in PREFECT_API_URL."
        )

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _environment() -> dict[str, str]:
    quiet = {"PREFECT_UI_ENABLED": "0", "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    services = ("SCHEDULER", "LATE_RUNS", "TRIGGERS", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "FOREMAN")
    quiet |= {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in services}
    server = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    return {**quiet, **os.environ, **server, "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING"}


def _lock_first_start(home: Path) -> int | None:
    """Hold an exclusive lock until the database of a fresh home has been migrated."""
    lock = os.open(home / ".first-start.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
