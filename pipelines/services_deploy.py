"""The work pool and the deployments of prefect.yaml, made or brought up to date on the server of PREFECT_API_URL.

`python -m pipelines.services_deploy ROOT POOL RUNS_AT_ONCE`, or `rloo services deploy`.
"""

import os
import subprocess
import sys
from pathlib import Path

from pipelines.deployed import ROOT
from pipelines.services_webhook import set_up_webhook

FLOW = "rloo"  # of pipelines.flow, which is not imported for its name
FILE = Path(__file__).with_name("prefect.yaml")


class DeployError(RuntimeError):
    """The deployments could not be made."""


def deploy(root: Path, pool: str, runs_at_once: int) -> None:
    """Make the work pool and the deployments; paused schedules stay paused.

    Args:
        root: The run root, carried by the deployments.
        pool: Name of the work pool, of type process.
        runs_at_once: Its limit.

    Raises:
        DeployError: With what Prefect said.
    """
    _make_pool(pool, runs_at_once)
    variables = {ROOT: str(root.absolute()), "RLOO_POOL": pool, "RLOO_PYTHON": sys.executable}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(FILE)]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DeployError(f"prefect deploy failed:\n{(done.stdout + done.stderr).strip()}")
    _refuse_unknown_parameters()
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


def _refuse_unknown_parameters() -> None:
    """Prefect checks the parameters that it knows; one with a slip in its name would start a process that crashes."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowFilter, FlowFilterName

    with get_client(sync_client=True) as client:
        for found in client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=[FLOW]))):
            schema = {**(found.parameter_openapi_schema or {}), "additionalProperties": False}
            change = {"parameter_openapi_schema": schema}
            client.request("PATCH", "/deployments/{id}", path_params={"id": found.id}, json=change)


if __name__ == "__main__":
    try:
        deploy(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except DeployError as error:
        sys.exit(f"rloo: {error}")
