"""A run that a worker has started from a deployment, inside a flow run that exists already.

Servers on loopback have no login, so a deployment starts nothing that its machine does not allow: the run root and
whatever else belongs to the machine come from it, not from the parameters.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole

from pipelines import environment
from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.console import Console
from pipelines.execution import StageFailed
from pipelines.job import Job
from pipelines.machine import load_machine, refuse_what_is_not_allowed
from pipelines.plan import PlannedStage, Selection, make_plan
from pipelines.preflight import NotReady, check_root
from pipelines.process import log_file
from pipelines.runner import in_words, prepared
from pipelines.service_addresses import FOLDER
from pipelines.store import Store
from rloo_core.settings import ExperimentSettings

ROOT = "RLOO_ROOT"  # carried by every deployment: the absolute run root
OF_THE_MACHINE = ("paths.", "paths=", "services.", "services=", "tracking=", "tracking.uri", "tracking.artifacts")


class RunFailed(Exception):
    """A run failed; the message is what a person reads in Prefect."""


def run_deployed(parameters: Mapping[str, Any], flow_run: str, conduct: Callable[[Job], None]) -> None:
    """Compose the settings, plan, and run the stages through `conduct`.

    Args:
        parameters: Those of `pipelines.flow.rloo`.
        flow_run: Id of the flow run.
        conduct: Runs a job within the flow run.

    Raises:
        ConfigError: If a parameter is wrong, or not allowed on this machine.
        RunFailed: If a stage failed.
    """
    settings, overrides, selection = request(parameters, run_root())
    root = Path(settings.paths.root)
    check_root(root)
    environment.prepare(root)
    console = Console(RichConsole(highlight=False, width=120))
    log = root / "logs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        with log_file(log), prepared(settings, overrides, selection, console, flow_run) as job:
            conduct(job)
    except StageFailed as failed:
        raise RunFailed(in_words(failed, root)) from (failed.__cause__ or failed)


def dry_plan(parameters: Mapping[str, Any]) -> list[PlannedStage]:
    """What the parameters would do; nothing is started.

    Raises:
        ConfigError: See `run_deployed`.
    """
    settings, overrides, selection = request(parameters, run_root())
    return make_plan(settings, Store(settings.paths.root), selection, overrides)


def request(parameters: Mapping[str, Any], root: Path) -> tuple[ExperimentSettings, list[str], Selection]:
    """Settings, overrides and selection for the parameters of a flow run, on this machine.

    Raises:
        ConfigError: If a parameter is wrong, or is the machine's to decide.
    """
    typed = [f"experiment={parameters['experiment']}", *parameters["overrides"]]
    refuse_the_machines(typed)
    overrides = [*machine_overrides(root), *typed, f"paths.root={root}"]
    only, force = tuple(parameters["only"]), tuple(parameters["force"])
    selection = Selection(only, parameters["from_stage"], parameters["until"], force)
    settings = load_settings(overrides)
    refuse_what_is_not_allowed(settings, load_machine())
    return settings, overrides, selection


def refuse_the_machines(typed: Sequence[str]) -> None:
    """Some settings are the machine's to decide.

    Raises:
        ConfigError: If one of them is among these overrides.
    """
    refused = [text for text in typed if text.lstrip("+~").startswith(OF_THE_MACHINE)]
    if refused:
        raise ConfigError(
            [f"{text}: a deployment takes this from its machine; give it to `rloo services up`" for text in refused]
        )


def run_root() -> Path:
    """The run root that the deployment carries.

    Raises:
        NotReady: If it carries none.
    """
    root = os.environ.get(ROOT, "")
    if not Path(root).is_absolute():
        raise NotReady(
            f"{ROOT}={root!r}: a deployment carries the absolute run root; make it with `rloo services deploy`"
        )
    return Path(root)


def machine_overrides(root: Path) -> list[str]:
    """The overrides that `rloo services` was given on this machine."""
    try:
        return list(json.loads((root / FOLDER / "overrides.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []


def keep_overrides(root: Path, overrides: Sequence[str]) -> None:
    """Note them for the runs of deployments."""
    (root / FOLDER).mkdir(parents=True, exist_ok=True)
    (root / FOLDER / "overrides.json").write_text(json.dumps(list(overrides), indent=1), encoding="utf-8")
