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
FIRST_USE = (  # imported on first use otherwise, by each point anew
    "alembic.command",
    "mlflow.store.tracking.sqlalchemy_store",
    "pipelines.own_functions",
    "rouge_score.rouge_scorer",
    "sacrebleu.metrics.bleu",
    "sklearn.metrics",
    "transformers.models.gpt_neox.modeling_gpt_neox",
)
for library in FIRST_USE:
    importlib.import_module(library)
settings = load_settings([])  # Hydra reads its files
for stage in STAGES.values():
    stage.load()
    own_parts(stage, settings)  # reads and hashes the code
