"""Records of flow runs: who holds them, and what the Prefect server is told from them."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from pipelines import flow_records
from pipelines.flow_records import State, TaskRecord

RUN = str(uuid4())
API = "http://127.0.0.1:4200/api"
HOLD_AND_DIE = """
import os, sys
from pathlib import Path
from pipelines.flow_records import State, TaskRecord, hold

record = hold(Path(sys.argv[1]), sys.argv[2], "url")
record.task("11111111-1111-1111-1111-111111111111", TaskRecord("data", "data", "0", State("COMPLETED", "Reused")))
record.task("22222222-2222-2222-2222-222222222222", TaskRecord("sft", "sft", "0", State("RUNNING", "Running")))
os.kill(os.getpid(), 9)
"""
DATA, SFT = UUID("11111111-1111-1111-1111-111111111111"), UUID("22222222-2222-2222-2222-222222222222")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run root whose flow run was killed while it trained SFT."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path), RUN], env=environment, check=False)
    assert done.returncode == -9
    return tmp_path


def test_a_record_is_left_behind_only_by_a_dead_process(tmp_path: Path, killed: Path) -> None:
    other = str(uuid4())
    held = flow_records.hold(killed, other, API)
    assert [path.stem for path in flow_records.left_behind(killed)] == [RUN]
    held.release()
    assert sorted(path.stem for path in flow_records.left_behind(killed)) == sorted([RUN, other])
    held.forget()
    assert [path.stem for path in flow_records.left_behind(killed)] == [RUN]


def test_a_retry_takes_the_record_over(killed: Path) -> None:
    record = flow_records.hold(killed, RUN, API)
    record.ended(State("FAILED", "Failed", "why"))
    assert flow_records.left_behind(killed) == []
    read = flow_records.read(record.path)
    assert set(read.tasks) == {str(DATA), str(SFT)}
    assert read.end == State("FAILED", "Failed", "why")
    record.forget()
    assert list(record.path.parent.iterdir()) == []


def test_a_damaged_record_is_no_record(killed: Path) -> None:
    (killed / "flows" / f"{RUN}.json").write_text('{"flow_run": 1}')
    assert flow_records.left_behind(killed) == []


class Server:
    """Prefect's client as far as repairs use it, with the states the server believes in."""

    def __init__(self, flow: str, tasks: dict[UUID, tuple[str, str]]) -> None:
        self.flow, self.tasks = flow, dict(tasks)
        self.flow_state: tuple[str, str] | None = None
        self.created: list[str] = []

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_flow_run(self, run: UUID) -> Any:
        from prefect.client.schemas.objects import StateType

        return SimpleNamespace(id=run, name="tiny", state_type=StateType(self.flow))

    def read_task_run(self, run: UUID) -> Any:
        from prefect.client.schemas.objects import StateType
        from prefect.exceptions import ObjectNotFound

        if run not in self.tasks:
            raise ObjectNotFound(http_exc=Exception("404"))
        kind, name = self.tasks[run]
        return SimpleNamespace(state=SimpleNamespace(type=StateType(kind), name=name))

    def request(self, method: str, path: str, json: dict[str, str]) -> None:
        self.created.append(json["name"])
        self.tasks[UUID(json["id"])] = ("PENDING", "Pending")

    def set_task_run_state(self, run: UUID, state: Any, force: bool) -> None:
        self.tasks[run] = (state.type.value, state.name)

    def set_flow_run_state(self, run: UUID, state: Any, force: bool) -> None:
        self.flow_state = (state.type.value, state.name)


def repaired(monkeypatch: pytest.MonkeyPatch, root: Path, server: Server) -> list[str]:
    from pipelines import flow_repair

    said: list[str] = []
    monkeypatch.setattr(flow_repair, "get_client", lambda sync_client: server)
    flow_repair.reconcile(root, said.append)
    return said


def test_a_killed_run_is_crashed_and_so_is_the_stage_it_was_in(monkeypatch: pytest.MonkeyPatch, killed: Path) -> None:
    server = Server("RUNNING", {DATA: ("COMPLETED", "Reused"), SFT: ("RUNNING", "Running")})
    assert repaired(monkeypatch, killed, server) == ["flow run tiny of an earlier start: Crashed"]
    assert server.flow_state == ("CRASHED", "Crashed")
    assert server.tasks == {DATA: ("COMPLETED", "Reused"), SFT: ("CRASHED", "Crashed")}
    assert list((killed / "flows").iterdir()) == []


def test_a_stage_whose_events_were_lost_is_created_again(monkeypatch: pytest.MonkeyPatch, killed: Path) -> None:
    server = Server("RUNNING", {})
    repaired(monkeypatch, killed, server)
    assert server.created == ["data", "sft"]
    assert server.tasks == {DATA: ("COMPLETED", "Reused"), SFT: ("CRASHED", "Crashed")}


@pytest.mark.parametrize(
    ("believed", "end", "told"),
    [
        ("RUNNING", State("COMPLETED", "Completed"), ("COMPLETED", "Completed")),  # the server was away at the end
        ("CRASHED", State("COMPLETED", "Completed"), ("COMPLETED", "Completed")),  # so the process ended with an error
        ("CANCELLING", None, ("CANCELLED", "Cancelled")),
        ("CANCELLED", None, None),
        ("SCHEDULED", None, None),  # somebody retries it already
        ("FAILED", State("FAILED", "Failed"), None),
        ("COMPLETED", None, None),
    ],
)
def test_what_the_server_is_told_about_the_flow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, believed: str, end: State | None, told: tuple[str, str] | None
) -> None:
    record = flow_records.hold(tmp_path, RUN, API)
    record.task(str(DATA), TaskRecord("data", "data", "0", State("COMPLETED", "Completed")))
    if end:
        record.ended(end)
    record.release()
    server = Server(believed, {DATA: ("COMPLETED", "Completed")})
    repaired(monkeypatch, tmp_path, server)
    assert server.flow_state == told
    assert not record.path.exists()


class Pool(Server):
    """The same with several flow runs that a worker of this machine has claimed: their states, and since when."""

    def __init__(self, claimed: dict[UUID, tuple[str, float]]) -> None:
        super().__init__("RUNNING", {})
        self.claimed = claimed
        self.workers = ["here"]
        self.told: dict[UUID, str] = {}

    def read_workers_for_work_pool(self, pool: str) -> list[Any]:
        from prefect.client.schemas.objects import WorkerStatus

        gone = [SimpleNamespace(name="gone", status=WorkerStatus.OFFLINE)]
        return gone + [SimpleNamespace(name=name, status=WorkerStatus.ONLINE) for name in self.workers]

    def read_flow_runs(self, **_: object) -> list[Any]:
        from prefect.client.schemas.objects import StateType

        return [
            SimpleNamespace(
                id=run,
                name=kind.lower(),
                state_type=StateType(kind),
                state=SimpleNamespace(timestamp=datetime.now(UTC) - timedelta(seconds=ago)),
            )
            for run, (kind, ago) in self.claimed.items()
        ]

    def set_flow_run_state(self, run: UUID, state: Any, force: bool) -> None:
        self.told[run] = state.name


def test_what_a_dead_worker_had_claimed_is_closed_and_what_lives_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines import flow_repair

    living, dead, fresh, cancelling = uuid4(), uuid4(), uuid4(), uuid4()
    server = Pool({living: ("RUNNING", 3600), dead: ("RUNNING", 3600), fresh: ("PENDING", 5), cancelling: ("CANCELLING", 99)})  # fmt: skip # noqa: E501
    monkeypatch.setattr(flow_repair, "get_client", lambda sync_client: server)
    said: list[str] = []
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": str(living)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environment):  # ends with its input
        server.workers.append("another machine's")
        flow_repair.reconcile_pool("rloo", "here", said.append)
        assert server.told == {}
        server.workers.pop()
        flow_repair.reconcile_pool("rloo", "here", said.append)
    assert server.told == {dead: "Crashed", cancelling: "Cancelled"}
    assert said == ["flow run running: Crashed", "flow run cancelling: Cancelled"]
