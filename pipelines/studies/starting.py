"""Where studies run: in processes of this machine, in a flow of a Prefect server, or in a flow run that is there."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines import environment
from pipelines.console import Console
from pipelines.digests import write_atomically
from pipelines.prefect_server import Server
from pipelines.preflight import check_root
from pipelines.process import log_file
from pipelines.runner import prefect_server, use_running_server
from pipelines.studies.conduct import Make
from pipelines.studies.point import Errand, Returned
from pipelines.studies.pool import Pool
from pipelines.studies.run import Prepared, check, failed_points, parameters_of, run_study
from pipelines.studies.runners import LOCAL, task_runner

if TYPE_CHECKING:
    from pipelines.studies.page import StudyPage


def run_all(studies: Sequence[Prepared], console: Console, use_prefect: bool, together: bool) -> int:
    """Studies one after the other; all are checked before the first one starts.

    Args:
        studies: What to run, in one run root.
        console: What a person sees.
        use_prefect: Each as a Prefect flow, on a running server or a temporary one.
        together: Write one page about all of them.

    Returns:
        Exit code: 0, or 1 if a point failed.
    """
    root = studies[0].options.root
    check_root(root)
    for warning in environment.prepare(root):
        console.warning(warning)
    if use_prefect:
        use_running_server(root)
    with ExitStack() as stack:
        server = stack.enter_context(prefect_server(root)) if use_prefect else None

        def compute(each: Prepared) -> "StudyPage":
            return _as_flow(each, console, server) if server else _directly(each, console)

        pages = one_after_the_other(studies, console, compute, together)
    return 1 if failed_points(pages) else 0


def one_after_the_other(
    studies: Sequence[Prepared], console: Console, compute: "Callable[[Prepared], StudyPage]", together: bool
) -> "list[StudyPage]":
    """Check all, then compute each, with a log; after each, one page about all so far, where that is wanted."""
    from pipelines.studies.page import index

    root, pages = studies[0].options.root, []
    together_at = root / f"studies-{studies[0].study.profile}.html"
    with log_file(_log_of(root)):
        for each in studies:
            check(each)
            for warning in each.warnings:
                console.warning(f"{each.study.name}: {warning}")
        for each in studies:
            if together:
                console.line(f"\n{each.study.name}: {each.study.title}", style="bold")
            pages.append(compute(each))
            if together:
                write_atomically(together_at, index(pages))
    if together:
        console.line(f"all studies  {together_at}")
    return pages


def in_flow(prepared: Prepared, console: Console) -> "StudyPage":
    """The study inside the flow run that is running."""
    from pipelines.flow_ends import held_record
    from pipelines.studies.flow import Shown
    from pipelines.studies.tasks import as_tasks

    record = held_record(prepared.options.root, console.warning)
    make = partial(as_tasks, many=prepared.workers, record=record)
    if prepared.options.runner != LOCAL:
        return run_study(prepared, console, partial(make, pool=None), Shown)
    with Pool(gpus=prepared.gpus) as pool:
        return run_study(prepared, console, partial(make, pool=pool), Shown)


def locally(many: int, pool: Pool) -> Make:
    """Errands in processes of this machine, without Prefect."""

    def make(errands: Sequence[Errand]) -> Iterator[Returned]:
        with ThreadPoolExecutor(many) as threads:
            try:
                for future in as_completed([threads.submit(pool.run, errand) for errand in errands]):
                    yield future.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                pool.stop()
                raise

    return make


def _directly(prepared: Prepared, console: Console) -> "StudyPage":
    with Pool(gpus=prepared.gpus) as pool:
        return run_study(prepared, console, locally(prepared.workers, pool))


def _as_flow(prepared: Prepared, console: Console, server: Server) -> "StudyPage":
    """The same inside a flow run, which fails if a point did.

    If Prefect fails after the results are there, the study has not failed.
    """
    from pipelines.studies import flow

    options = prepared.options
    found: list[StudyPage] = []

    def run() -> str:
        found.append(in_flow(prepared, console))
        return failed_points(found)

    try:
        with task_runner(options.runner, prepared.workers, options.address) as runner:
            flow.run_as_flow(run, parameters_of(prepared), runner, options.root, server, console.line)
    except Exception as error:
        if not found:
            raise
        console.warning(f"the study is finished, but Prefect could not record its end: {error}")
    return found[0]


def _log_of(root: Path) -> Path:
    return root / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-study.log"
