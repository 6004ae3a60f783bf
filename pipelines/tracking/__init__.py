"""MLflow: the only package that imports it. One parent run a pipeline run, one child a stage that executed.

    Tracker.open(settings, warn, say)  →  tracker.start(…)  →  tracker.start_stage(…)  →  StageRun

What is reported goes to disk (`pipelines.evidence`); a thread, the mirror, copies it to MLflow. Explicit run ids
everywhere; no outage stalls a training, and none loses anything.
"""

from pipelines.tracking.connection import TrackingError
from pipelines.tracking.models import ModelWish
from pipelines.tracking.stage_run import StageRun
from pipelines.tracking.tracker import Tracker, deliver

__all__ = ["ModelWish", "StageRun", "Tracker", "TrackingError", "deliver"]
