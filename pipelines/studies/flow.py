"""A study as a Prefect flow: one task a point, its progress as an artifact. Import it after `environment.prepare`."""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from prefect import flow, runtime
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.exceptions import FailedRun
from prefect.states import Completed, Failed
from prefect.task_runners import TaskRunner

from pipelines import flow_ends
from pipelines.flow_artifacts import cell, escaped, run_of_the_whole
from pipelines.flow_ends import flow_run_id
from pipelines.flow_parameters import Override, offered
from pipelines.flow_records import State
from pipelines.prefect_server import Server
from pipelines.studies import tasks
from pipelines.studies.conduct import Conduct
from pipelines.studies.loading import ALL, profile_names, study_names
from pipelines.studies.point import Returned
from rloo_core.settings import Count

LOG = logging.getLogger("rloo")
StudyName = Annotated[str, offered(lambda: [*study_names(), ALL])]
ProfileName = Annotated[str, offered(profile_names)]


@flow(
    name="rloo-study",
    flow_run_name="{study}, {profile}",
    persist_result=False,
    on_completion=[flow_ends.forget],
    on_failure=[flow_ends.forget],
)
def rloo_study(
    study: StudyName = "kl",
    profile: ProfileName = "quick",
    overrides: list[Override] = [],  # noqa: B006 (Prefect shows it; nothing changes it)
    seeds: Count | None = None,
) -> object:
    """A base experiment x axes x seeds: tables, figures and claims. What is finished is not computed again.

    Args:
        study: A file of conf/study, or `all`.
        profile: Its size.
        overrides: Settings of every point: algorithm.steps=20
        seeds: Number of seeds; the profile's, if none.
    """
    try:
        failed = (tasks.prepared.get() or _deployed)()
    except Exception as error:
        flow_ends.ended(State("FAILED", "Failed", flow_ends.message_of(error)))
        raise
    if failed:
        flow_ends.ended(State("FAILED", "Failed", failed))
        return Failed(message=failed)  # no exception, which Prefect would keep as a pickle
    flow_ends.ended(State("COMPLETED", "Completed"))
    return Completed()


def _deployed() -> str:
    from pipelines.studies.deployed import run_deployed_study  # here: it imports this module

    return run_deployed_study(dict(runtime.flow_run.parameters))


def run_as_flow(
    run: Callable[[], str],
    parameters: Mapping[str, Any],
    runner: TaskRunner[Any],
    root: Path,
    server: Server,
    say: Callable[[str], None],
) -> None:
    """Run a study, prepared by `rloo study`, inside a flow run.

    Args:
        run: The study; returns which points failed, in words.
        parameters: As Prefect's pages show them.
        runner: Of the points.
        root: The run root.
        server: The Prefect server.
        say: Told which flow runs of dead processes were repaired.
    """
    token = tasks.prepared.set(run)
    try:
        with flow_ends.looked_after(root, server, say), suppress(FailedRun):  # points failed, and that has been told
            rloo_study.with_options(task_runner=runner)(**parameters)
    finally:
        tasks.prepared.reset(token)


class Shown:
    """The progress of a study as artifacts of the flow run, from its start on."""

    def __init__(self, conduct: Conduct) -> None:
        self._conduct = conduct
        self._progress: Any = None
        self._conduct.run.tag("prefect.run", flow_run_id() or "")
        self.update()

    def update(self) -> None:
        """Bring the progress artifact up to date."""
        progress = self._conduct.progress
        text = f"{escaped(self._conduct.study.title)}: {progress}"
        if self._progress is None:
            self._progress = _try(lambda: create_progress_artifact(progress.percent, key="study", description=text))
        else:
            _try(lambda: update_progress_artifact(self._progress, progress=progress.percent, description=text))

    def finish(self, results: str) -> None:
        """Each point with what became of it, and the results."""
        rows = [_row(name, found) for name, found in self._conduct.returned.items()]
        run = self._conduct.run
        where = run_of_the_whole(self._conduct.points[0].settings, run.connection.experiment_id, run.run_id)
        _try(lambda: create_table_artifact(rows, key="points", description="What became of each point"))
        _try(lambda: create_markdown_artifact(f"{results}\n{where}\n", key="results", description="Tables and claims"))


def _row(name: str, found: Returned) -> dict[str, str]:
    """A point in the table; no column is without a name, since Prefect's pages leave such a one out."""
    return {
        "point": cell(name),
        "state": "failed" if found.error else "done" if found.computed else "reused",
        "seconds": f"{found.seconds:.0f}" if found.seconds else "",
        "memory, GiB": f"{found.memory:.1f}" if found.memory else "",
        "why": cell(found.error),
    }


def _try(call: Callable[[], Any]) -> Any:
    """An artifact that cannot be stored is no reason to stop a study."""
    try:
        return call()
    except Exception:
        LOG.warning("Prefect did not take an artifact", exc_info=True)
        return None
