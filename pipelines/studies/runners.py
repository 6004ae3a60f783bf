"""Where the tasks of a study's flow run: threads that wait for processes of this machine, or workers of Dask or Ray.

A cluster that is started here is of this machine alone: it listens on loopback, and is gone with the study.
"""

import importlib.util
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from pipelines.config_errors import ConfigError

LOCAL = "local"
LOOPBACK = "127.0.0.1"
# Ray's own names. The first is meant for laptops whose firewalls ask: servers listen on loopback, and nowhere else.
RAY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}


def check_runner(kind: str) -> None:
    """Whether a kind of runner can be had.

    Raises:
        ConfigError: If its library is not installed.
    """
    if kind != LOCAL and importlib.util.find_spec(f"prefect_{kind}") is None:
        raise ConfigError(f"--runner {kind} needs prefect-{kind}: pip install 'rloo[{kind}]'")


@contextmanager
def task_runner(kind: str, workers: int, address: str | None) -> Iterator[Any]:
    """One of Prefect's task runners.

    Args:
        kind: local, dask or ray.
        workers: Points at a time.
        address: Of a cluster that runs; None: one of this machine is started.
    """
    from prefect.task_runners import ThreadPoolTaskRunner  # these imports here: Prefect takes a second

    if kind == LOCAL:
        yield ThreadPoolTaskRunner(max_workers=workers)
    elif kind == "dask":
        from prefect_dask.task_runners import DaskTaskRunner

        of_this_machine = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "host": LOOPBACK}
        yield DaskTaskRunner(address=address, cluster_kwargs=None if address else of_this_machine)
    else:
        with _ray_of_this_machine(workers) if address is None else nullcontext() as options:
            from prefect_ray.task_runners import RayTaskRunner

            yield RayTaskRunner(address=address, init_kwargs=options)


@contextmanager
def _ray_of_this_machine(workers: int) -> Iterator[dict[str, Any]]:
    """What Ray is started with: a folder of its own for its files, and in the environment, which it reads when it is
    imported, a token without which nobody may ask it to run code. What a person has set is kept.
    """
    for name, value in {**RAY, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory(prefix="rloo-ray-", ignore_cleanup_errors=True) as folder:
        yield {
            "num_cpus": workers, "include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR,
            "_temp_dir": folder,
        }  # fmt: skip
