"""Brings the Prefect server's states in line with what happened: after its outage, after a process was killed.

settle(record)     at the end of a flow run, by the process that ran it
reconcile(root)    for runs whose process is gone; `python -m pipelines.flow_repair ROOT [POOL]` does it for services
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import State as ServerState
from prefect.client.schemas.objects import StateType, WorkerStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from pipelines import flow_records
from pipelines.flow_records import FlowRecord, State, TaskRecord
from pipelines.preflight import server_trouble
from pipelines.service_addresses import worker_name

LOG = logging.getLogger("rloo")
PATIENCE_SECONDS = 600.0  # for a server that is away when the flow ends
EVENTS_SECONDS = 5.0  # until the server has worked through the events it has received
START_SECONDS = 30.0  # between a worker's claim and the flow's process
FORGET_DAYS = 30.0  # records of a server that never comes back
KILLED = State("CRASHED", "Crashed", "Its process ended without a word: killed, or out of memory, or the power failed.")
NO_PROCESS = State("CRASHED", "Crashed", "A worker claimed it and died before its process ran.")


def _never() -> bool:
    return False


server_ended: Callable[[], bool] = _never  # set by who started the server: then waiting for it is in vain


def settle(record: FlowRecord, warn: Callable[[str], None]) -> None:
    """Wait until the server answers and knows how every task ended; what it does not know, it is told.

    Never raises an error: what cannot be told now stays in the record, for the next start. SIGTERM and Ctrl-C end it.
    """
    if not _answers(warn):
        return
    try:
        with get_client(sync_client=True) as client:
            waiting = dict(record.tasks)
            deadline = time.monotonic() + EVENTS_SECONDS
            while waiting and time.monotonic() < deadline:
                waiting = {run: task for run, task in waiting.items() if not _knows(client, run, task)}
                time.sleep(0.1 if waiting else 0.0)
            for run, task in waiting.items():
                _tell(client, record, run, task)
    except Exception:
        LOG.warning("The states of this flow run could not be checked", exc_info=True)


def reconcile(root: Path, say: Callable[[str], None]) -> None:
    """Correct what the server believes about flow runs of this run root whose processes are gone."""
    for path in flow_records.left_behind(root):
        try:
            with flow_records.dead(path) as record, get_client(sync_client=True) as client:
                if record is not None:
                    _repair(client, record, say)
        except Exception:
            LOG.warning("The flow run of %s could not be repaired", path, exc_info=True)


def reconcile_pool(pool: str, worker: str, say: Callable[[str], None]) -> None:
    """Mark runs as Crashed that the worker of these services claimed, but that have no process.

    Nothing says which worker claimed a run: in a pool with another worker, which may be another machine's, none is
    touched.
    """
    claimed = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=claimed)))
    with get_client(sync_client=True) as client:
        online = {each.name for each in client.read_workers_for_work_pool(pool) if each.status == WorkerStatus.ONLINE}
        if online - {worker}:
            return
        here = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
        for run in client.read_flow_runs(flow_run_filter=wanted, work_pool_filter=here):
            since = run.state.timestamp if run.state else None
            old = since is not None and datetime.now(UTC) - since > timedelta(seconds=START_SECONDS)
            if old and not _has_process(run.id):
                told = _set_flow_state(client, run.id, run.state_type, NO_PROCESS)
                if told is not None:
                    say(f"flow run {run.name}: {told.name}")


def _answers(warn: Callable[[str], None]) -> bool:
    """Whether the server answers now or within ten minutes."""
    url = PREFECT_API_URL.value() or ""
    deadline, told = time.monotonic() + PATIENCE_SECONDS, False
    while trouble := server_trouble(url):
        if server_ended() or time.monotonic() > deadline:
            return False
        if not told:
            minutes = PATIENCE_SECONDS / 60
            warn(f"the Prefect server {url} {trouble}; it is told the end if it answers within {minutes:.0f} minutes")
        told = True
        time.sleep(1.0)
    return True


def _repair(client: SyncPrefectClient, record: FlowRecord, say: Callable[[str], None]) -> None:
    try:
        run = client.read_flow_run(UUID(record.flow_run))
    except ObjectNotFound:  # of another server, or deleted there
        if time.time() - record.path.stat().st_mtime > FORGET_DAYS * 86400:
            record.forget()
        return
    for task_run, task in record.tasks.items():
        lost = TaskRecord(task.stage, task.key, task.dynamic_key, KILLED) if task.state.type == "RUNNING" else task
        if not _knows(client, task_run, lost):
            _tell(client, record, task_run, lost)
    told = _set_flow_state(client, run.id, run.state_type, record.end or KILLED)
    if told is not None:
        say(f"flow run {run.name} of an earlier start: {told.name}")
    record.forget()


def _set_flow_state(client: SyncPrefectClient, run: UUID, known: StateType | None, true: State) -> State | None:
    """Tell the server how a flow run ended, unless it knows, or has begun another attempt; returns what it was told."""
    if known == StateType.CANCELLING:
        true = State("CANCELLED", "Cancelled", "Its process is gone.")
    open_ = known in (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
    mistaken = known == StateType.CRASHED and true.type == "COMPLETED"  # the server was away when it was to be told
    if not (open_ or mistaken):
        return None
    client.set_flow_run_state(run, _state(true), force=True)
    return true


def _knows(client: SyncPrefectClient, run: str, task: TaskRecord) -> bool:
    try:
        state = client.read_task_run(UUID(run)).state
    except ObjectNotFound:
        return False
    return state is not None and (state.type.value, state.name) == (task.state.type, task.state.name)


def _tell(client: SyncPrefectClient, record: FlowRecord, run: str, task: TaskRecord) -> None:
    """Set the state of a task run; create the task run where even its beginning was lost."""
    try:
        client.read_task_run(UUID(run))
    except ObjectNotFound:
        values = {"id": run, "flow_run_id": record.flow_run, "name": task.stage, "task_key": task.key}
        client.request("POST", "/task_runs/", json={**values, "dynamic_key": task.dynamic_key})
    client.set_task_run_state(UUID(run), _state(task.state), force=True)


def _state(state: State) -> "ServerState[None]":
    return ServerState(type=StateType(state.type), name=state.name, message=state.message or None)


def _has_process(flow_run: UUID) -> bool:
    """Whether a process of this machine runs a flow run; workers name it in the environment."""
    wanted = f"PREFECT__FLOW_RUN_ID={flow_run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


if __name__ == "__main__":
    reconcile(Path(sys.argv[1]), print)
    if len(sys.argv) > 2:
        reconcile_pool(sys.argv[2], worker_name(Path(sys.argv[1])), print)
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do, and Prefect's threads need not be waited for
