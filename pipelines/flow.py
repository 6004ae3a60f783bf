"""The run as a Prefect flow, its stages as tasks. Import it after `environment.prepare`: Prefect reads that once.

Tasks are called, not submitted: they cost nothing, and SIGTERM reaches only the main thread. Whoever started the flow,
`rloo run` or a worker, the same function runs the stages.
"""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from prefect import flow, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings
from prefect.states import Completed

from pipelines import deployed, flow_artifacts, flow_ends, flow_records
from pipelines.flow_ends import message_of
from pipelines.flow_parameters import Experiment, Override, StageName, as_parameters, flow_run_name
from pipelines.flow_records import FlowRecord, TaskRecord
from pipelines.job import Job
from pipelines.outcome import Outcome
from pipelines.prefect_server import Server

LOG = logging.getLogger("rloo")
RETRIES = 2
RETRY_SECONDS = (10.0, 60.0)
NETWORK = ("requests", "urllib3", "httpx", "huggingface_hub", "botocore")
_started: ContextVar[Job | None] = ContextVar("job that `rloo run` prepared", default=None)


@flow(
    name="rloo",
    flow_run_name=lambda: flow_run_name(runtime.flow_run.parameters),
    persist_result=False,
    on_completion=[flow_ends.forget],
    on_failure=[flow_ends.forget],
)
def rloo(
    experiment: Experiment = "default",
    overrides: list[Override] = [],  # noqa: B006 (Prefect shows it; nothing changes it)
    from_stage: StageName | None = None,
    until: StageName | None = None,
    only: list[StageName] = [],  # noqa: B006
    force: list[StageName] = [],  # noqa: B006
    dry_run: bool = False,
) -> object:
    """Prompts in, aligned policy and its report out. Finished stages with the same settings, data and code are reused.

    Args:
        experiment: A file of conf/experiment.
        overrides: Settings, one an entry, as on the command line: algorithm.kl_coef=0.3
        from_stage: This stage and later ones; earlier ones must be finished.
        until: Nothing after this stage.
        only: Only these stages; what they read must be finished.
        force: Run these stages even if they are finished.
        dry_run: Show the plan, run nothing.
    """
    job = _started.get()
    if job is not None:
        conduct(job)
        return None
    parameters = dict(runtime.flow_run.parameters)
    if dry_run:
        plan = deployed.dry_plan(parameters)
        flow_artifacts.publish_plan(experiment, plan)
        return Completed(name="Planned", message="Nothing was run; the artifact `plan` says what would be.")
    deployed.run_deployed(parameters, flow_ends.flow_run_id() or "", conduct)
    return None


def run_as_flow(job: Job, server: Server) -> None:
    """Run a prepared job as a flow run of a Prefect server."""
    root, say = Path(job.settings.paths.root), job.executor.console.line
    with flow_ends.looked_after(root, server, say, _without_heartbeat()):
        token = _started.set(job)
        try:
            rloo(**as_parameters(job.overrides, job.selection))  # type: ignore[call-overload]
        finally:
            _started.reset(token)


def conduct(job: Job) -> None:
    """Run the stages of a job within the flow run; plan and report become its artifacts.

    Raises:
        StageFailed: From the first stage that fails.
    """
    record = flow_ends.held_record(Path(job.settings.paths.root), job.executor.console.warning)
    job.executor.tracker.tag("prefect.run", record.flow_run)
    flow_artifacts.publish_plan(job.settings.name, job.plan)
    try:
        job.run(partial(as_task, record))
        flow_artifacts.publish_report(job)
    except Exception as error:
        flow_ends.ended(flow_records.State("FAILED", "Failed", message_of(error)))
        raise
    flow_ends.ended(flow_records.State("COMPLETED", "Completed"))


def as_task(record: FlowRecord, stage: str, step: Callable[[], Outcome]) -> Outcome:
    """Run one stage as a task of its name; a reused output shows as the state "Reused".

    Only trouble with an outside service is tried again: anything else would fail again.

    Raises:
        Exception: What the stage raised.
    """
    outcomes: list[Outcome] = []

    @task(
        name=stage,
        task_run_name=stage,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=RETRIES,
        retry_delay_seconds=list(RETRY_SECONDS),
        retry_condition_fn=_is_outside,
    )
    def run_stage() -> object:
        note("RUNNING", "Running")
        try:
            outcomes.append(step())
        except BaseException as error:
            kind = "FAILED" if isinstance(error, Exception) else "CRASHED"
            note(kind, kind.title(), message_of(error))
            raise
        name = "Reused" if outcomes[0].reused else "Completed"
        note("COMPLETED", name)
        return Completed(name=name, message=outcomes[0].directory.name) if outcomes[0].reused else None

    def note(kind: str, name: str, message: str = "") -> None:
        context = TaskRunContext.get()
        if context is not None:
            run, state = context.task_run, flow_records.State(kind, name, message)
            record.task(str(run.id), TaskRecord(stage, run.task_key, run.dynamic_key, state))

    state = run_stage(return_state=True)
    if not outcomes:
        state.result()  # raises what the stage raised
        raise RuntimeError(f"Prefect ended the task {stage} as {state.name} without running it.")
    return outcomes[0]


def _is_outside(_: object, __: object, state: State) -> bool:
    """Whether a stage failed at the network: a hub, an artifact store."""
    try:
        state.result()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            outside = type(cause).__module__.partition(".")[0] in NETWORK
            if outside or isinstance(cause, ConnectionError | TimeoutError):
                return True
            cause = cause.__cause__ or cause.__context__
    return False


def _without_heartbeat() -> dict[object, None]:
    """The heartbeat thread sleeps in steps of a second, and every flow waits for it at its end.

    It stays on where a person set its frequency, for automations that look for it.
    """
    chosen = "heartbeat_frequency" in get_current_settings().flows.model_fields_set
    return {} if chosen else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
