"""A study that a worker has started from a deployment, inside a flow run that exists already."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console as RichConsole

from pipelines import environment
from pipelines.config_errors import ConfigError, listed, nearest
from pipelines.config_overrides import without_root
from pipelines.console import Console
from pipelines.deployed import machine_overrides, refuse_the_machines, run_root
from pipelines.machine import load_machine, refuse_what_is_not_allowed
from pipelines.preflight import check_root
from pipelines.studies.loading import ALL, load_definition, named, study_names
from pipelines.studies.run import Options, Prepared, failed_points, prepare
from pipelines.studies.starting import in_flow, one_after_the_other


def run_deployed_study(parameters: Mapping[str, Any]) -> str:
    """Compute a study, or all of them, within the flow run.

    Args:
        parameters: Those of `pipelines.studies.flow.rloo_study`.

    Raises:
        ConfigError: If a parameter is wrong, or not allowed on this machine.

    Returns:
        Which points failed, in words; "" if none did. The results of the others are there.
    """
    studies = request(parameters)
    root = studies[0].options.root
    check_root(root)
    environment.prepare(root)
    console = Console(RichConsole(highlight=False, width=120))
    together = parameters["study"] == ALL
    return failed_points(one_after_the_other(studies, console, lambda each: in_flow(each, console), together))


def request(parameters: Mapping[str, Any]) -> list[Prepared]:
    """What the parameters ask for, checked; a deployment knows the studies of conf/study only.

    Raises:
        ConfigError: If a parameter is wrong, or is the machine's to decide.
    """
    name, overrides = str(parameters["study"]), tuple(parameters["overrides"])
    if name not in (*study_names(), ALL):
        known = [*study_names(), ALL]
        raise ConfigError(f"study={name}: a deployment runs {listed(known)}{nearest(name, known)}")
    refuse_the_machines(overrides)
    root = run_root()
    typed = (*machine_overrides(root), *overrides)
    options = Options(root, (*typed, f"paths.root={root}"))
    studies = [
        prepare(load_definition(each, str(parameters["profile"]), without_root(typed), parameters["seeds"]), options)
        for each in named(name)
    ]
    machine = load_machine()
    for study in studies:
        for point in study.points:
            refuse_what_is_not_allowed(point.settings, machine)
    return studies
