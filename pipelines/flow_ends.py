"""A flow run that this process runs, from its beginning until the Prefect server knows how it and its tasks ended."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from prefect import Flow
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.objects import State as ServerState
from prefect.context import FlowRunContext
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from pipelines import flow_records, flow_repair
from pipelines.flow_records import FlowRecord, State
from pipelines.prefect_server import Server
from pipelines.preflight import server_trouble


class _Held(NamedTuple):
    record: FlowRecord
    warn: Callable[[str], None]


_held: dict[str, _Held] = {}


def flow_run_id() -> str | None:
    """The id of the running flow run, if there is one."""
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context is not None and context.flow_run is not None else None


def held_record(root: Path, warn: Callable[[str], None]) -> FlowRecord:
    """The record of the running flow run, held by this process until it is forgotten or `looked_after` is left.

    Args:
        root: The run root.
        warn: Told if the server has to be waited for.
    """
    run = flow_run_id() or ""
    if run not in _held:
        _held[run] = _Held(flow_records.hold(root, run, PREFECT_API_URL.value() or ""), warn)
    return _held[run].record


def ended(state: State) -> None:
    """Note how the running flow run ended, and bring the server up to date; nothing where no record is held."""
    held = _held.get(flow_run_id() or "")
    if held is not None:
        held.record.ended(state)
        flow_repair.settle(held.record, held.warn)


def forget(flow: Flow[..., Any], flow_run: FlowRun, state: ServerState[Any]) -> None:
    """For a flow's hooks: the server has recorded the end of the flow run, and before it that of every task."""
    with suppress(KeyError):
        _held.pop(str(flow_run.id)).record.forget()


@contextmanager
def looked_after(
    root: Path, server: Server, say: Callable[[str], None], settings: Mapping[Any, Any] | None = None
) -> Iterator[None]:
    """Around flow runs that a command starts: repairs those of dead processes first, sends the logs at the end.

    Args:
        root: The run root.
        server: The Prefect server; waited for.
        say: Told what was repaired.
        settings: Of Prefect's client, besides the server's address.
    """
    url = server.wait()
    with temporary_settings({PREFECT_API_URL: url, **(settings or {})}):
        flow_repair.reconcile(root, say)
        flow_repair.server_ended = server.ended
        try:
            yield
        finally:
            if not server.ended() and server_trouble(url) is None:
                APILogHandler().flush()  # while the server is still there
            while _held:
                _held.popitem()[1].record.release()


def message_of(error: BaseException) -> str:
    """What went wrong, in the words of the error that a stage raised."""
    return str(error.__cause__ or error) or type(error).__name__
