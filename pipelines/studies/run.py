"""One study: checks, points, results. `starting` says where it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config_errors import ConfigError
from pipelines.config_overrides import without_root
from pipelines.console import Console
from pipelines.evidence import FAILED, FINISHED, KILLED
from pipelines.fingerprint import resolved_device
from pipelines.records import study_command
from pipelines.store import Store
from pipelines.studies.budget import workers
from pipelines.studies.conduct import Conduct, Make, only_once, record_name
from pipelines.studies.definition import Definition
from pipelines.studies.gpus import shares, visible
from pipelines.studies.measurable import measurable
from pipelines.studies.points import Point, finished, points_of
from pipelines.studies.progress import Progress
from pipelines.studies.runners import LOCAL, check_runner

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

    Raises:
        ConfigError: If a cluster's points are to be as many as fit here, where they do not run.
    """

    root: Path
    overrides: tuple[str, ...] = ()
    workers: int | None = None
    memory: float | None = None
    runner: str = LOCAL
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and (self.workers is None or self.memory is not None):
            wrong = "--memory is of this machine; leave it out" if self.memory else "--workers is missing"
            raise ConfigError(
                f"--address {self.address}: {wrong}. What fits into the cluster is not known here, so say with "
                f"--workers how many points it makes at a time; the run root, {self.root}, must be on a file system "
                f"that its workers see, too"
            )


@dataclass(frozen=True)
class Prepared:
    """A study whose settings are all valid.

    Args:
        study: What is studied.
        points: All of it.
        options: How.
        warnings: What a person must know before it starts.
    """

    study: Definition
    points: Sequence[Point]
    options: Options
    warnings: Sequence[str] = ()

    @cached_property
    def gpus(self) -> list[str]:
        """`CUDA_VISIBLE_DEVICES` of each point at a time; [] if points compute on processors, or in a cluster.

        Raises:
            ConfigError: If a cluster that is started here would compute on GPUs: all points on the first one.
        """
        wanted = [point.settings.compute for point in self.points]
        if self.options.address or not any(resolved_device(compute.device) == "cuda" for compute in wanted):
            return []
        if self.options.runner != LOCAL:
            raise ConfigError(
                f"--runner {self.options.runner} without --address computes on this machine, all points on its first "
                f"GPU; leave --runner out, and each has one of its own"
            )
        return shares(visible(), max(compute.processes for compute in wanted))

    @cached_property
    def workers(self) -> int:
        """Points at a time: on a cluster as many as were asked for, here no more than fit.

        Raises:
            ConfigError: If not even one point fits into this machine now.
        """
        if self.options.address is not None and self.options.workers is not None:
            return min(self.options.workers, len(self.points))
        threads = max(point.settings.compute.threads * point.settings.compute.processes for point in self.points)
        fitting = workers(threads, self.study.memory, self.options.workers, self.options.memory, len(self.gpus) or None)
        return min(fitting, len(self.points))

    def check_fits(self) -> None:
        """Settle how many points run at a time, before any compute.

        Raises:
            ConfigError: If not even one point fits into this machine now.
        """
        _ = self.workers


def prepare(study: Definition, options: Options) -> Prepared:
    """Compose every point; nothing is started, and nothing asked of this machine.

    Raises:
        ConfigError: If the settings of a point are wrong, or the points can measure nothing of what is asked for.
    """
    points = points_of(study, str(options.root))
    study, warnings = measurable(study, {point.settings.data.source for point in points})
    return Prepared(study, points, options, warnings)


def check(prepared: Prepared) -> None:
    """What must hold before any compute, once for all points; a cluster's devices and memory are its own.

    Raises:
        ConfigError: If a device, a library or a reward function is not there, or not even one point fits.
    """
    check_runner(prepared.options.runner)
    prepared.check_fits()
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
            if prepared.options.address is None:
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
    from pipelines.studies.page import markdown
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
                display.finish(markdown(content))
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
    from pipelines.studies.page import markdown, page
    from pipelines.studies.results import Results

    results = Results.of(conduct, Store(prepared.options.root), command_of(prepared))
    content = results.page
    for name, (_, figure) in results.figures.items():
        run.figure(name, figure)
    for name, rows in results.rows().items():
        run.table(name, rows)
    run.file("results.json", results.json())
    run.file("results.md", markdown(content))
    run.results(results.numbers())
    where = run.file(STUDY_PAGE, page(content))
    console.rich.print(tell(content))
    console.line(f"page       {where}")
    return content


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
