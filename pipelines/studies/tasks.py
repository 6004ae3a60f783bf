"""The points of a study as Prefect tasks.

A task only waits for a process: on this machine for one of `Pool`, on a Dask or Ray cluster for one that its worker
starts. When Prefect is away, the points go on.

Dask sends the running flow to its workers, function and all: what cannot be sent lives here and is reached through this
module, which is sent by its name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed
from prefect.states import Completed

from pipelines.flow_records import FlowRecord, State, TaskRecord
from pipelines.studies.point import Errand, Returned
from pipelines.studies.pool import Pool
from pipelines.studies.subprocesses import in_subprocess

prepared: ContextVar[Callable[[], str] | None] = ContextVar("what `rloo study` prepared", default=None)
_pools: list[Pool] = []
_returned: dict[str, Returned] = {}  # also of tasks whose end Prefect could not record


class PointFailed(Exception):
    """A point failed; the message says why."""


@task(name="point", task_run_name="{name}", cache_policy=NO_CACHE, persist_result=False)
def make_point(name: str, errand: Errand, local: bool) -> object:
    """One errand, on this machine or on that of the cluster's worker."""
    found = _pools[-1].run(errand) if local else in_subprocess(errand)
    _returned[name] = found
    if found.error:
        raise PointFailed(found.error)
    return found if found.computed else Completed(name="Reused", data=found)


def as_tasks(errands: Sequence[Errand], many: int, pool: Pool | None, record: FlowRecord) -> Iterator[Returned]:
    """Errands as tasks of the running flow.

    Args:
        errands: What is to be made.
        many: How many at a time.
        pool: Makes them here; None: the cluster's workers do.
        record: Of the flow run; told what became of each.
    """
    if pool is not None:
        _pools.append(pool)
    waiting, running = list(errands), dict[PrefectFuture[Any], str]()
    try:
        while waiting or running:
            while waiting and len(running) < many:
                errand = waiting.pop(0)
                future = make_point.submit(errand.name, errand, pool is not None)
                running[future] = errand.name
                _note(record, future, errand.name, State("RUNNING", "Running"))
            future = next(as_completed(list(running)))
            name = running.pop(future)
            found = _result(future, name)
            _note(record, future, name, _state(found))
            yield found
    finally:
        for future, name in running.items():
            _note(record, future, name, State("CRASHED", "Crashed", "The study was stopped."))
        _pools.clear()
        _returned.clear()


def _note(record: FlowRecord, future: PrefectFuture[Any], name: str, state: State) -> None:
    run = str(future.task_run_id)
    record.task(run, TaskRecord(name, make_point.task_key, run, state))


def _state(found: Returned) -> State:
    if found.error:
        return State("FAILED", "Failed", found.error)
    return State("COMPLETED", "Completed" if found.computed else "Reused")


def _result(future: Any, name: str) -> Returned:
    try:
        found = future.result(raise_on_failure=False)
    except Exception as error:
        found = error
    if isinstance(found, Returned):
        return found
    if name in _returned:
        return _returned[name]
    return Returned(name, error=str(found) or type(found).__name__)
