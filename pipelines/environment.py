"""Environment variables that Prefect and MLflow read when they are imported, so this must run before them.

Everything stays below the run root, nothing is sent anywhere, and nothing a person set is overwritten.
"""

import os
from collections.abc import Mapping
from pathlib import Path

QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # a stage has one bar, ours
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "TQDM_DISABLE": "1",  # the same, for bars of libraries that have no switch of their own
    "TRANSFORMERS_VERBOSITY": "error",  # its reports on weights that a new head lacks are expected
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a line for every run that ends, between ours
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds; with the two below a dead server costs a minute, not four
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_CLIENT_MAX_RETRIES": "3",  # 14 s; `flow_repair` waits longer, in a way that can be interrupted
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # errors are told once, by us; the log file has all of them
    "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",  # the same for its background services,
    "PREFECT_LOGGING_LOGGERS_PREFECT_INTERNAL_PROPAGATE": "true",  # whose records reach the log file only this way
    "PREFECT_LOGGING_EXTRA_LOGGERS": "rloo",  # what stages say is shown with the flow run, too
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",  # results live in our store
}
FOREIGN_RUN = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")


def prepare(root: Path, environ: "os._Environ[str] | dict[str, str] | None" = None) -> list[str]:
    """Set what is not set yet. Call it before `prefect` or `mlflow` is imported.

    Args:
        root: The run root; Prefect's home becomes `<root>/prefect`, Matplotlib's font cache lies there too.
        environ: The environment to change; the process's own by default.

    Returns:
        Warnings worth showing: variables of another MLflow run, which are ignored.
    """
    environ = os.environ if environ is None else environ
    places = {"PREFECT_HOME": str(root / "prefect"), "MPLCONFIGDIR": str(root / "cache" / "matplotlib")}
    for name, value in {**QUIET, **places}.items():
        environ.setdefault(name, value)
    return [
        f"{name}={environ[name]} in the environment is ignored: every run is named explicitly."
        for name in FOREIGN_RUN
        if environ.get(name)
    ]


def own_server(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the flow needs a temporary Prefect server, because nobody named one."""
    return not environ.get("PREFECT_API_URL")
