"""A study as a Prefect flow: one task a point, its progress as an artifact. Import it after `environment.prepare`."""

import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from prefect import flow, runtime
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from pipelines.config_errors import ConfigError
from pipelines.flow_artifacts import escaped
from pipelines.flow_parameters import Override, offered
from pipelines.studies import tasks
from pipelines.studies.conduct import Conduct
from pipelines.studies.loading import ALL, profile_names, study_names
from rloo_core.settings import Count

LOG = logging.getLogger("rloo")
StudyName = Annotated[str, offered(lambda: [*study_names(), ALL])]
ProfileName = Annotated[str, offered(profile_names)]


@flow(name="rloo-study", flow_run_name="{study}, {profile}", persist_result=False)
def rloo_study(
    study: StudyName = "kl",
    profile: ProfileName = "quick",
    overrides: list[Override] = [],  # noqa: B006 (Prefect shows it; nothing changes it)
    seeds: Count | None = None,
) -> None:
    """A base experiment x axes x seeds: tables, figures and claims. What is finished is not computed again.

    Args:
        study: A file of conf/study, or `all`.
        profile: Its size.
        overrides: Settings of every point: algorithm.steps=20
        seeds: Number of seeds; the profile's, if none.
    """
    run = tasks.prepared.get()
    if run is not None:
        run()
        return
    from pipelines.studies.deployed import run_deployed_study  # here: it imports this module

    run_deployed_study(dict(runtime.flow_run.parameters))


def run_as_flow(run: Callable[[], None], parameters: Mapping[str, Any], runner: TaskRunner[Any], api_url: str) -> None:
    """Run a study, prepared by `rloo study`, inside a flow run.

    Args:
        run: The study.
        parameters: As Prefect's pages show them.
        runner: Of the points.
        api_url: The Prefect server.
    """
    token = tasks.prepared.set(run)
    try:
        with temporary_settings({PREFECT_API_URL: api_url}):
            rloo_study.with_options(task_runner=runner)(**parameters)
            APILogHandler().flush()  # while the server is still there
    finally:
        tasks.prepared.reset(token)


def task_runner(kind: str, workers: int, address: str | None) -> Any:
    """Where points are computed.

    Args:
        kind: local, dask or ray.
        workers: Points at a time.
        address: Of a cluster that runs; None: one of this machine is started.

    Raises:
        ConfigError: If the library is not installed.

    Returns:
        One of Prefect's task runners.
    """
    if kind == "local":
        return ThreadPoolTaskRunner(max_workers=workers)
    try:
        if kind == "dask":
            from prefect_dask.task_runners import DaskTaskRunner

            if address:
                return DaskTaskRunner(address=address)
            options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
            return DaskTaskRunner(cluster_kwargs=options)
        from prefect_ray.task_runners import RayTaskRunner
    except ImportError:
        raise ConfigError(f"--runner {kind} needs prefect-{kind}: pip install 'rloo[{kind}]'") from None
    return RayTaskRunner(address=address, init_kwargs=None if address else {"num_cpus": workers})


class Shown:
    """The progress of a study as artifacts of the flow run."""

    def __init__(self, conduct: Conduct) -> None:
        self._conduct = conduct
        self._progress: Any = None

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
        rows = [
            {
                "point": name,
                "": "failed" if found.error else "done" if found.computed else "reused",
                "seconds": f"{found.seconds:.0f}",
                "memory, GiB": f"{found.memory:.1f}",
                "why": found.error,
            }
            for name, found in self._conduct.returned.items()
        ]
        _try(lambda: create_table_artifact(rows, key="points", description="What became of each point"))
        _try(lambda: create_markdown_artifact(results, key="results", description="Tables and claims"))


def _try(call: Callable[[], Any]) -> Any:
    """An artifact that cannot be stored is no reason to stop a study."""
    try:
        return call()
    except Exception:
        LOG.warning("Prefect did not take an artifact", exc_info=True)
        return None
