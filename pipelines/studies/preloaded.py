"""What every point of a study needs, loaded once in the process that the points' processes are forked from."""

import importlib

import torch

from pipelines.studies import point  # noqa: F401
from pipelines.tracking import Tracker  # noqa: F401
from rloo_core.stages import STAGES

torch.set_num_threads(1)  # a pool of threads would not survive the fork
for stage in STAGES.values():
    importlib.import_module(stage.module)
