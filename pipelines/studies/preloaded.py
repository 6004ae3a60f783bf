"""What every point of a study needs, loaded once in the process that the points' processes are forked from.

Importing it does the loading: that is how a fork server is told what to load. Nothing is opened, and no thread started,
since neither would survive the fork.
"""

import importlib

import torch

from pipelines.config import load_settings
from pipelines.fingerprint import own_parts
from pipelines.studies import point, pool  # noqa: F401
from pipelines.tracking import Tracker  # noqa: F401
from rloo_core.stages import STAGES

torch.set_num_threads(1)
for library in ("mlflow.store.tracking.sqlalchemy_store", "transformers.models.gpt_neox.modeling_gpt_neox"):
    importlib.import_module(library)  # both are imported on first use otherwise
settings = load_settings([])  # Hydra reads its files
for stage in STAGES.values():
    stage.load()
    own_parts(stage, settings)  # reads and hashes the code
