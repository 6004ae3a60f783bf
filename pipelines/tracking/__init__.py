"""MLflow: the only package that imports it. One parent run a pipeline run, one child a stage that executed.

    Tracker.open(settings, warn)  →  tracker.start(…)  →  tracker.start_stage(…)  →  StageRun

Explicit run ids everywhere; a failing server never fails a training.
"""

from pipelines.tracking.connection import TrackingError
from pipelines.tracking.stage_run import StageRun
from pipelines.tracking.tracker import StageNote, Tracker

__all__ = ["StageNote", "StageRun", "Tracker", "TrackingError"]
