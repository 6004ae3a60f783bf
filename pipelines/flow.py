"""The run as a Prefect flow, its stages as tasks. Nothing else imports Prefect; import it after `environment.prepare`.

Tasks are called, not submitted: they cost nothing, and SIGTERM reaches only the main thread.
"""

from collections.abc import Callable, Sequence

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.logging.handlers import APILogHandler
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    get_current_settings,
    temporary_settings,
)
from prefect.states import Completed

from pipelines.outcome import Execute, Outcome


def run_as_flow(
    name: str, body: Callable[[Execute], None], overrides: Sequence[str], selection: dict[str, object], api_url: str
) -> None:
    """Run `body` inside a flow run; what it executes shows up as tasks.

    Args:
        name: Name of the flow run: the experiment's.
        body: Runs the stages, each through the function it is given.
        overrides: What a person typed; shown as a parameter of the flow run.
        selection: Which stages; shown as a parameter.
        api_url: The Prefect server.
    """

    @flow(name="rloo", flow_run_name=name, validate_parameters=False, persist_result=False)
    def rloo(overrides: list[str], selection: dict[str, object]) -> None:
        """Prompts in, aligned policy and its report out."""
        body(as_task)

    with temporary_settings({PREFECT_API_URL: api_url, **_without_heartbeat()}):
        try:
            rloo(list(overrides), selection)
        finally:
            APILogHandler().flush()  # while the server is still there


def as_task(stage: str, step: Callable[[], Outcome]) -> Outcome:
    """Run one stage as a task of its name; a reused output shows as the state "Reused".

    Raises:
        Exception: What the stage raised.
    """
    outcomes: list[Outcome] = []

    @task(name=stage, task_run_name=stage, cache_policy=NO_CACHE, persist_result=False)
    def run_stage() -> object:
        outcomes.append(step())
        return Completed(name="Reused", message=outcomes[0].directory.name) if outcomes[0].reused else None

    state = run_stage(return_state=True)
    if not outcomes:
        state.result()  # raises what the stage raised
        raise RuntimeError(f"Prefect ended the task {stage} as {state.name} without running it.")
    return outcomes[0]


def flow_run_id() -> str | None:
    """The id of the running flow run, if there is one."""
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context is not None and context.flow_run is not None else None


def _without_heartbeat() -> dict[object, None]:
    """The heartbeat thread sleeps in steps of a second, and every flow waits for it at its end.

    It stays on where a person set its frequency, for automations that look for it.
    """
    chosen = "heartbeat_frequency" in get_current_settings().flows.model_fields_set
    return {} if chosen else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
