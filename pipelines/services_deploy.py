"""The work pool and the deployments of prefect.yaml, made or brought up to date on the server of PREFECT_API_URL.

`python -m pipelines.services_deploy ROOT POOL RUNS_AT_ONCE`, or `rloo services deploy`.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pipelines.deployed import ROOT
from pipelines.services_webhook import set_up_webhook

if TYPE_CHECKING:
    from prefect.client.schemas.objects import DeploymentSchedule
    from prefect.client.schemas.responses import DeploymentResponse

FLOWS = ["rloo", "rloo-study"]  # of pipelines.flow and pipelines.studies.flow, which are not imported for their names
FILE = Path(__file__).with_name("prefect.yaml")


class DeployError(RuntimeError):
    """The deployments could not be made."""


def deploy(root: Path, pool: str, runs_at_once: int) -> None:
    """Make the work pool and the deployments; paused schedules stay paused, and those that a person added stay.

    Args:
        root: The run root, carried by the deployments.
        pool: Name of the work pool, of type process.
        runs_at_once: Its limit.

    Raises:
        DeployError: With what Prefect said.
    """
    _make_pool(pool, runs_at_once)
    before = {found.id: found.schedules for found in _deployments()}
    variables = {ROOT: str(root.absolute()), "RLOO_POOL": pool, "RLOO_PYTHON": sys.executable}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(FILE)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DeployError(f"prefect deploy failed:\n{(done.stdout + done.stderr).strip()}")
    for found in _deployments():
        _refuse_unknown_parameters(found)
        _bring_back(found, before.get(found.id, []))
    set_up_webhook()


def _make_pool(pool: str, runs_at_once: int) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            found = client.read_work_pool(pool)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=pool, type="process", concurrency_limit=runs_at_once))
            return
        if found.type != "process":
            raise DeployError(f"the work pool {pool} is of type {found.type}; set services.work_pool to another")
        client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=runs_at_once))


def _deployments() -> "list[DeploymentResponse]":
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    with get_client(sync_client=True) as client:
        return client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=FLOWS)))


def _refuse_unknown_parameters(deployment: "DeploymentResponse") -> None:
    """Prefect checks the parameters that it knows; one with a slip in its name would start a process that crashes."""
    schema = {**(deployment.parameter_openapi_schema or {}), "additionalProperties": False}
    _send("PATCH", f"/deployments/{deployment.id}", {"parameter_openapi_schema": schema})


def _bring_back(deployment: "DeploymentResponse", before: "list[DeploymentSchedule]") -> None:
    """Schedules without a slug are a person's. Where there are some, Prefect makes all of a deployment anew, active."""
    have = {schedule.id for schedule in deployment.schedules}
    lost = [schedule for schedule in before if schedule.id not in have and schedule.slug is None]
    if lost:
        fields = {"schedule", "active", "parameters", "max_scheduled_runs"}
        schedules = [schedule.model_dump(mode="json", include=fields) for schedule in lost]
        _send("POST", f"/deployments/{deployment.id}/schedules", schedules)
    paused = {schedule.slug for schedule in before if schedule.slug is not None and not schedule.active}
    for schedule in deployment.schedules:
        if schedule.active and schedule.slug in paused:
            _send("PATCH", f"/deployments/{deployment.id}/schedules/{schedule.id}", {"active": False})


def _send(method: Literal["PATCH", "POST"], path: str, body: object) -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.request(method, path, json=body)  # type: ignore[arg-type]  # its paths are literals


if __name__ == "__main__":
    try:
        deploy(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except DeployError as error:
        sys.exit(f"rloo: {error}")
