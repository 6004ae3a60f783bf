"""The one place where pictures are drawn: a run's here and in `runs`, a study's in `studies`.

Stages draw their run, so whatever is imported here is part of a stage's code. A study's pictures are not: to redraw
them must not train anything again. Import those from `rloo_core.evaluation.figures.studies`.
"""

from rloo_core.evaluation.figures.runs import (
    by_length,
    calibration,
    distributions,
    evaluation_figures,
    reward_against_kl,
    reward_and_kl,
    win_rates,
)

__all__ = [
    "by_length",
    "calibration",
    "distributions",
    "evaluation_figures",
    "reward_against_kl",
    "reward_and_kl",
    "win_rates",
]
