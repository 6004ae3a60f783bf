"""Real outside services for tests, on loopback: PostgreSQL, S3. Skipped with a reason where absent."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.services import answers, free_port, until

REGION = "us-east-1"
USER, PASSWORD = "rloo", "wins/ties@0.5"  # with characters that a URL would have to escape


@dataclass(frozen=True)
class PostgreSQL:
    """A server with empty databases `mlflow` and `prefect`; the password is in a file, as it should be."""

    port: int
    passfile: Path
    programs: Path

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that point both services at it."""
        where = f"://{USER}@127.0.0.1:{self.port}"
        return (
            f"tracking.uri=postgresql{where}/mlflow",
            f"services.prefect_database=postgresql+asyncpg{where}/prefect",
        )

    def query(self, database: str, statement: str) -> list[str]:
        """Rows of a query."""
        command = [
            self.programs / "psql",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            USER,
            "-Atc",
            statement,
            database,
        ]
        environment = {**os.environ, "PGPASSFILE": str(self.passfile)}
        return subprocess.check_output(command, env=environment, text=True).split()


def programs() -> Path:
    """Directory of PostgreSQL's programs; they are not on Debian's PATH."""
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    places += [Path(found).parent for found in [shutil.which("initdb")] if found]
    if not places:
        pytest.skip("PostgreSQL's initdb is not installed; on Debian: apt-get install postgresql")
    return places[0]


@contextmanager
def postgresql(place: Path) -> Iterator[PostgreSQL]:
    """A server that lives in a directory of its own for the length of the block."""
    found, port = programs(), free_port()
    owner = "postgres" if os.getuid() == 0 else None  # it refuses to be run by root
    data = Path(tempfile.mkdtemp(prefix="postgresql-"))  # where that user may go
    passfile, password = place / "pgpass", data / "password"
    passfile.write_text(f"127.0.0.1:{port}:*:{USER}:{PASSWORD}\n")
    passfile.chmod(0o600)
    password.write_text(PASSWORD)
    if owner:
        for path in (data, password):
            shutil.chown(path, owner)
    init = [
        "-D",
        data / "db",
        "-U",
        USER,
        "--pwfile",
        password,
        "--auth=scram-sha-256",
        "-E",
        "UTF8",
        "--locale=C.UTF-8",
    ]
    server = None
    try:
        subprocess.run([found / "initdb", *init], user=owner, cwd=data, check=True, stdout=subprocess.DEVNULL)
        options = [
            "-D",
            data / "db",
            "-p",
            str(port),
            "-k",
            data,
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "fsync=off",
        ]
        with (place / "postgresql.log").open("wb") as log:
            server = subprocess.Popen([found / "postgres", *options], user=owner, cwd=data, stdout=log, stderr=log)
        made = PostgreSQL(port, passfile, found)
        until(lambda: _is_ready(found, port), "PostgreSQL to be ready")
        for database in ("mlflow", "prefect"):
            made.query("postgres", f"create database {database}")
        yield made
    finally:
        if server is not None:
            server.send_signal(2)  # "fast" shutdown
            server.wait(120)
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def s3(bucket: str) -> Iterator[tuple[dict[str, str], Any]]:
    """An S3-compatible server with an empty bucket: environment variables for its clients, and a client."""
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed; pip install 'rloo[s3]'")
    pytest.importorskip("moto", reason="moto, an S3 server for tests, is not installed")
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", url.rpartition(":")[2]]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keys = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-bucket",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        until(lambda: answers(f"{url}/moto-api/"), "the S3 server")
        client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="key", aws_secret_access_key="x", region_name=REGION
        )
        client.create_bucket(Bucket=bucket)
        yield {**keys, "MLFLOW_S3_ENDPOINT_URL": url}, client
    finally:
        server.kill()
        server.wait()


def _is_ready(programs: Path, port: int) -> bool:
    """Whether it answers; it listens a moment before that."""
    command = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    return subprocess.run(command, check=False).returncode == 0
