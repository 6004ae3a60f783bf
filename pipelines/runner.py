"""One run, from settings to the table at the end; the same stages with Prefect and without.

    run_pipeline(load_settings(overrides), overrides, Selection(), use_prefect=True)  →  exit code

Whatever happens, every MLflow run is ended and nothing half-made is published.
"""

import logging
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import environment
from pipelines.config import to_yaml
from pipelines.config_errors import ConfigError
from pipelines.console import Console
from pipelines.evidence import Place
from pipelines.execution import MODEL, Executor, StageExited, StageFailed
from pipelines.job import Job
from pipelines.outcome import directly
from pipelines.plan import PlannedStage, Planner, Selection, make_plan
from pipelines.prefect_server import NamedServer, Server, ServerError, TemporaryServer
from pipelines.preflight import NotReady, check_prefect_server, check_root, disk_full, is_full
from pipelines.process import Terminated, log_file, sigterm_raises
from pipelines.records import Record, left_of, of_flow_run
from pipelines.service_addresses import other_mlflow, running_services
from pipelines.store import Store
from rloo_core.settings import ExperimentSettings

if TYPE_CHECKING:
    from pipelines.tracking import Tracker

LOG = logging.getLogger("rloo")
FINISHED, FAILED, BAD_CONFIG, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
DEFAULT_ROOT = "runs"  # conf/paths/default.yaml: need not be typed again
# Their message says what to do; the log has the traceback.
CLEAR = (ValueError, TypeError, OSError, ImportError, ServerError, StageExited)


def run_pipeline(
    settings: ExperimentSettings,
    overrides: Sequence[str],
    selection: Selection,
    use_prefect: bool,
    console: Console | None = None,
    resume: Record | None = None,
) -> int:
    """Run the selected stages.

    Args:
        settings: Of the whole run.
        overrides: What a person typed, for the record.
        selection: Which stages.
        use_prefect: Run as a Prefect flow, on the server of PREFECT_API_URL or on a temporary one.
        console: What a person sees; the terminal by default.
        resume: The run that is to go on.

    Returns:
        Exit code: 0, 1 (an error, told on the terminal), 2 (the selection cannot work), 130 (Ctrl-C) or 143 (SIGTERM).
    """
    console = console or Console()
    root = Path(settings.paths.root)
    log = root / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    with sigterm_raises():
        try:
            check_root(root)
            for warning in environment.prepare(root):
                console.warning(warning)
            if warning := other_mlflow(settings.tracking, root):
                console.warning(warning)
            if use_prefect:
                use_running_server(root)
            _run(settings, overrides, selection, use_prefect, console, log, resume)
            return FINISHED
        except BaseException as error:
            return explain(error, console, log, root)


def _run(
    settings: ExperimentSettings,
    overrides: Sequence[str],
    selection: Selection,
    use_prefect: bool,
    console: Console,
    log: Path,
    resume: Record | None,
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(prefect_server(Path(settings.paths.root))) if use_prefect else None
        stack.enter_context(log_file(log))
        job = stack.enter_context(prepared(settings, overrides, selection, console, resume=resume))
        if server is None:
            job.run(directly)
        else:
            _as_flow(job, server)
    _finish(job, console)


@contextmanager
def prepared(
    settings: ExperimentSettings,
    overrides: Sequence[str],
    selection: Selection,
    console: Console,
    flow_run: str = "",
    resume: Record | None = None,
    place: Place | None = None,
) -> Iterator[Job]:
    """A job whose plan is made and told, and whose MLflow run is open until the block ends.

    Args:
        settings: Of the whole run.
        overrides: What a person typed.
        selection: Which stages.
        console: What a person sees.
        flow_run: Id of the Prefect flow run of a deployment; a second attempt at it goes on in its MLflow run, and
            forces nothing a second time.
        resume: The run that is to go on, in its MLflow run.
        place: The run's place in a study; without one, a report is written at the end.
    """
    store = Store(settings.paths.root)
    retried = of_flow_run(store.root, flow_run)
    if retried is not None and retried.status != "FINISHED":
        selection = left_of(retried, store)
    plan = make_plan(settings, store, selection, overrides)
    console.plan(plan_rows(plan))
    if any(stage.action in ("run", "depends") for stage in plan):
        _check_device(settings)  # loads torch while the Prefect server starts
        from pipelines.own_functions import check_own_functions  # here: it loads torch

        check_own_functions(settings)
    typed = {"overrides": list(overrides), "selection": asdict(selection), "flow_run": flow_run}
    with _tracked(settings, typed, plan, console, resume or retried, place) as tracker:
        executor = Executor(settings, Planner(settings, store, selection, overrides), store, tracker, console, plan)
        yield Job(settings, overrides, selection, plan, executor)
        if tracker.evidence is not None and place is None:
            from pipelines.report_run import report_at_the_end  # here: it draws, which takes a second to load

            report_at_the_end(tracker.evidence, store, console.warning)


def _check_device(settings: ExperimentSettings) -> None:
    """Refuse a device that is not there before anything is computed.

    Raises:
        ConfigError: If there is no such device.
    """
    from rloo_core.trainer import check_device

    try:
        check_device(settings.compute)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _as_flow(job: Job, server: Server) -> None:
    """Run the stages inside a flow. If Prefect fails after the last stage has finished, the run has not failed."""
    from pipelines import flow

    try:
        flow.run_as_flow(job, server)
    except Exception as error:
        if not job.done:
            raise
        LOG.exception("Prefect failed at the end of the flow")
        job.executor.console.warning(
            f"All stages are finished, but Prefect could not record the end of the flow; the next start will: {error}"
        )


def use_running_server(root: Path) -> None:
    """The server that PREFECT_API_URL names, or that of the services of this run root.

    Raises:
        NotReady: If PREFECT_API_URL names a server that does not answer.
    """
    services = running_services(root)
    if environment.own_server() and services is not None:
        os.environ["PREFECT_API_URL"] = services.prefect_api
    if not environment.own_server():
        check_prefect_server(os.environ["PREFECT_API_URL"])


@contextmanager
def prefect_server(root: Path) -> Iterator[Server]:
    """The Prefect server: one that runs already, or a temporary one that is gone at the end."""
    if not environment.own_server():
        yield NamedServer(os.environ["PREFECT_API_URL"])
        return
    server = TemporaryServer(root)
    try:
        server.start()
        from pipelines import flow  # noqa: F401 (imported before the log file is opened: Prefect rearranges logging)

        yield server
    finally:
        server.stop()


@contextmanager
def _tracked(
    settings: ExperimentSettings,
    typed: dict[str, Any],
    plan: Sequence[PlannedStage],
    console: Console,
    earlier: Record | None,
    place: Place | None = None,
) -> "Iterator[Tracker]":
    """The parent run, ended as FINISHED, FAILED or KILLED."""
    from pipelines.tracking import Tracker

    tracker = Tracker.open(settings, console.warning, console.line)
    tracker.start(to_yaml(settings), typed, plan_rows(plan), earlier.evidence if earlier else None, place)
    status = "KILLED"
    try:
        yield tracker
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        tracker.finish(status)


def _finish(job: Job, console: Console) -> None:
    executor, outcomes = job.executor, job.executor.outcomes
    if outcomes and all(outcome.reused for outcome in outcomes.values()):
        console.line("nothing was computed: every stage is reused")
    evaluation, policy = outcomes.get("evaluation"), outcomes.get("policy")
    console.finished(
        summary=evaluation.summary if evaluation else {},
        seconds={name: outcome.seconds for name, outcome in outcomes.items() if not outcome.reused},
        policy=policy.directory / MODEL if policy else None,
        root=executor.store.root,
        default_root=Path.cwd() / DEFAULT_ROOT,
    )


def plan_rows(plan: Sequence[PlannedStage]) -> list[dict[str, str]]:
    """The plan as text: stage, action, reason."""
    return [{"stage": stage.name, "action": stage.action, "reason": stage.reason} for stage in plan]


def in_words(error: Exception, root: Path) -> str:
    """What went wrong in one line: the stage, and its error's message."""
    cause = error.__cause__ if isinstance(error, StageFailed) and error.__cause__ else error
    where = f"{error.stage}: " if isinstance(error, StageFailed) else ""
    text = disk_full(cause, root) if is_full(cause) else str(cause) or type(cause).__name__
    return f"{where}{text}"


def explain(error: BaseException, console: Console, log: Path, root: Path) -> int:
    """Say what went wrong in one message, keep the traceback in the log, and choose the exit code."""
    if isinstance(error, KeyboardInterrupt | Terminated):
        console.error("stopped; the same command goes on from the last checkpoint")
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else TERMINATED
    if not isinstance(error, Exception):
        raise error
    cause = error.__cause__ if isinstance(error, StageFailed) and error.__cause__ else error
    where = f"{error.stage}: " if isinstance(error, StageFailed) else ""
    if isinstance(cause, ConfigError | NotReady):
        console.error(str(cause))
        return BAD_CONFIG if isinstance(cause, ConfigError) else FAILED
    text = "".join(traceback.format_exception(cause))
    logged = _append(log, text)
    if is_full(error):
        console.error(f"{where}{disk_full(error, root)}")
    else:
        if not _is_clear(cause):
            console.error(text.rstrip())
        console.error(f"{where}{str(cause) or type(cause).__name__}")
    if logged:
        console.error(f"log: {log}")
    return FAILED


def _is_clear(cause: BaseException) -> bool:
    """Whether its message says what to do, without a traceback."""
    return isinstance(cause, CLEAR) or type(cause).__module__ == "pipelines.tracking.connection"


def _append(log: Path, text: str) -> bool:
    """Add to the log; False where it cannot be written."""
    try:
        with log.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return False
    return True
