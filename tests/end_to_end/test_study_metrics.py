"""The metrics that studies may name are those that runs measure."""

from pipelines.store import Store
from pipelines.studies.loading import load_definition, study_names
from pipelines.studies.measures import KL, Result, read_result
from pipelines.studies.metric_names import unknown_metric
from tests.conftest import Run

OF_PPO = {"policy/clip_frac"}  # the tiny run is RLOO's


def named(study: str) -> tuple[set[str], set[str]]:
    """Metrics of summaries, and of the training's curve."""
    loaded = load_definition(study, "laptop")
    summary = {measure.of for measure in loaded.measures.values() if measure.take is None}
    curve = {measure.of for measure in loaded.measures.values() if measure.take is not None}
    drawn = {y for figure in loaded.figures if figure.kind in ("curves", "against_kl") for y in figure.y}
    return summary, curve | drawn


def measured(run: Run) -> Result:
    """What a run left, as studies read it."""
    stages = ("reward_model", "policy", "evaluation")
    fingerprints = {stage: next((run.root / "store" / stage).iterdir()).name for stage in stages}
    return read_result(Store(run.root), fingerprints, {}, 0, 1)


def test_what_the_studies_of_conf_read_is_there(tiny_run: Run) -> None:
    result = measured(tiny_run)
    over_steps = set().union(*result.curve)
    summaries, curves = (set().union(*sets) for sets in zip(*map(named, study_names()), strict=True))
    assert summaries <= result.summary.keys()
    assert curves - OF_PPO <= over_steps
    assert KL in over_steps


def test_everything_that_a_run_measures_can_be_named(tiny_run: Run) -> None:
    """A study that names anything else is refused, so the list of names must not lack one."""
    result = measured(tiny_run)
    assert {name for name in set().union(*result.curve) if unknown_metric(name, of_curve=True)} == {"step"}
    unknown = {name for name in result.summary if unknown_metric(name, of_curve=False)}
    assert unknown == {"step", "reward_model/step"}
