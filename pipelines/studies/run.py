"""One study from the command line or a deployment: checks, processes or a flow, results."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import environment
from pipelines.config_errors import ConfigError
from pipelines.config_overrides import without_root
from pipelines.console import Console
from pipelines.digests import write_atomically
from pipelines.evidence import FAILED, FINISHED, KILLED
from pipelines.preflight import check_root
from pipelines.process import log_file
from pipelines.records import study_command
from pipelines.runner import prefect_server, use_running_server
from pipelines.store import Store
from pipelines.studies.budget import workers
from pipelines.studies.conduct import Conduct, Make, only_once, record_name
from pipelines.studies.definition import Definition
from pipelines.studies.point import Errand, Returned
from pipelines.studies.points import Point, finished, points_of
from pipelines.studies.pool import Pool
from pipelines.studies.progress import Progress

if TYPE_CHECKING:
    from pipelines.studies.flow import Shown
    from pipelines.studies.page import StudyPage
    from pipelines.studies.tracking import StudyRun

STUDY_PAGE = "study.html"
NAMED = 5  # points in the message of a flow run that failed


@dataclass(frozen=True)
class Options:
    """How a study is computed; nothing here changes a number.

    Args:
        root: The run root.
        overrides: What a person typed.
        workers: Points at a time; None: as many as fit.
        memory: GiB that all may take together; None: 80 % of what is free.
        runner: local, dask or ray.
        address: Of a cluster that runs.
    """

    root: Path
    overrides: tuple[str, ...] = ()
    workers: int | None = None
    memory: float | None = None
    runner: str = "local"
    address: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A study whose settings are all valid.

    Args:
        study: What is studied.
        points: All of it.
        options: How.
    """

    study: Definition
    points: Sequence[Point]
    options: Options

    @cached_property
    def workers(self) -> int:
        """Points at a time.

        Raises:
            ConfigError: If not even one point fits into this machine now.
        """
        threads = max(point.settings.compute.threads * point.settings.compute.processes for point in self.points)
        fitting = workers(threads, self.study.memory, self.options.workers, self.options.memory)
        return min(fitting, len(self.points))


def prepare(study: Definition, options: Options) -> Prepared:
    """Compose every point; nothing is started, and nothing asked of this machine.

    Raises:
        ConfigError: If the settings of a point are wrong.
    """
    return Prepared(study, points_of(study, str(options.root)), options)


def check(prepared: Prepared) -> None:
    """What must hold before any compute, once for all points.

    Raises:
        ConfigError: If a device or a reward function is not there, or not even one point fits.
    """
    assert prepared.workers
    from pipelines.own_functions import check_own_functions  # here: they load torch
    from rloo_core.trainer import check_device

    checked = set()
    for point in prepared.points:
        settings = point.settings
        key = repr((settings.compute, settings.reward, settings.algorithm.advantage))
        if key in checked:
            continue
        checked.add(key)
        try:
            check_device(settings.compute)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        check_own_functions(settings)


def run_study(
    prepared: Prepared, console: Console, make: Make, shown: "Callable[[Conduct], Shown] | None" = None
) -> "StudyPage":
    """Compute what is not there, and write the results beside the study's record.

    Args:
        prepared: The study.
        console: What a person sees.
        make: Makes errands.
        shown: Makes what shows the progress elsewhere, from the study in progress: see `flow.Shown`.

    Returns:
        The results.

    Raises:
        Refused: If another process computes the same study.
    """
    from pipelines.studies.tracking import StudyRun  # here: it loads MLflow

    study, options = prepared.study, prepared.options
    record = record_name(study, options.overrides)
    with only_once(options.root, record):
        tracking = prepared.points[0].settings.tracking
        run = StudyRun(options.root, record, tracking, console.warning, console.line)
        run.start(study, parameters_of(prepared))
        status = KILLED
        try:
            conduct = Conduct(study, prepared.points, run, console, Progress(len(prepared.points), prepared.workers))
            display = shown(conduct) if shown else None
            conduct.on_progress = display.update if display else conduct.on_progress
            conduct.make(make)
            content = _results(prepared, conduct, run, console)
            if display is not None:
                display.finish(markdown_of(content))
            status = FAILED if content.failed else FINISHED
        except Exception:
            status = FAILED
            raise
        finally:
            run.finish(status)
    return content


def failed_points(pages: "Sequence[StudyPage]") -> str:
    """What the state of a flow run says where a point of a study failed; "" if none did."""
    failed = [name for page in pages for name, _ in page.failed]
    if not failed:
        return ""
    total = f"{len(failed)} point{'s' if len(failed) > 1 else ''} failed"
    more = [f"{len(failed) - NAMED} more"] if len(failed) > NAMED else []
    return f"{total}: {'; '.join([*failed[:NAMED], *more])}. The artifact `points` says why"


def _results(prepared: Prepared, conduct: Conduct, run: "StudyRun", console: Console) -> "StudyPage":
    """Tables, figures, verdicts: kept with the study's run, and told."""
    from pipelines.studies.page import console as tell
    from pipelines.studies.page import page
    from pipelines.studies.results import Results

    results = Results.of(conduct, Store(prepared.options.root), command_of(prepared))
    content = results.page
    for name, (_, figure) in results.figures.items():
        run.figure(name, figure)
    for name, rows in results.rows().items():
        run.table(name, rows)
    run.file("results.json", results.json())
    run.file("results.md", markdown_of(content))
    run.results(results.numbers())
    where = run.file(STUDY_PAGE, page(content))
    console.rich.print(tell(content))
    console.line(f"page       {where}")
    return content


def markdown_of(content: "StudyPage") -> str:
    """The tables as Markdown, without figures."""
    from pipelines.studies.page import markdown

    text: str = markdown(content, {})
    return text


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
        stack.enter_context(log_file(root / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-study.log"))
        for each in studies:
            check(each)
        pages = []
        for each in studies:
            if together:
                console.line(f"\n{each.study.name}: {each.study.title}", style="bold")
            pages.append(_as_flow(each, console, server.wait()) if server else _directly(each, console))
            if together:
                from pipelines.studies.page import index

                place = root / f"studies-{each.study.profile}.html"
                write_atomically(place, index(pages))
        if together:
            console.line(f"all studies  {place}")
    return 1 if any(page.failed for page in pages) else 0


def _directly(prepared: Prepared, console: Console) -> "StudyPage":
    with Pool() as pool:
        return run_study(prepared, console, locally(prepared.workers, pool))


def _as_flow(prepared: Prepared, console: Console, api_url: str) -> "StudyPage":
    """The same inside a flow run, which fails if a point did.

    If Prefect fails after the results are there, the study has not failed.
    """
    from pipelines.studies import flow

    options = prepared.options
    found: list[StudyPage] = []
    runner = flow.task_runner(options.runner, prepared.workers, options.address)

    def run() -> str:
        found.append(in_flow(prepared, console))
        return failed_points(found)

    try:
        flow.run_as_flow(run, parameters_of(prepared), runner, api_url)
    except Exception as error:
        if not found:
            raise
        console.warning(f"the study is finished, but Prefect could not record its end: {error}")
    return found[0]


def in_flow(prepared: Prepared, console: Console) -> "StudyPage":
    """The study inside the flow run that is running."""
    from pipelines.studies.flow import Shown
    from pipelines.studies.tasks import as_tasks

    many = prepared.workers
    if prepared.options.runner != "local":
        return run_study(prepared, console, partial(as_tasks, many=many, pool=None), Shown)
    with Pool() as pool:
        return run_study(prepared, console, partial(as_tasks, many=many, pool=pool), Shown)


def to_do(prepared: Prepared) -> list[str]:
    """Names of the points whose last stage is not in the store."""
    store = Store(prepared.options.root)
    return [point.name for point in prepared.points if finished(point, store, point.until) is None]


def command_of(prepared: Prepared) -> str:
    """What computes the study again."""
    return study_command(parameters_of(prepared))


def parameters_of(prepared: Prepared) -> dict[str, Any]:
    """The parameters of `rloo study`, and of its flow, that compute this."""
    study, own = prepared.study, without_root(prepared.options.overrides)
    return {"study": study.file, "profile": study.profile, "overrides": own, "seeds": study.seeds.count}
