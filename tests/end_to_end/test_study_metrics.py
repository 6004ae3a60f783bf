"""The metrics that conf/study names are those that runs measure."""

from pipelines.store import Store
from pipelines.studies.loading import load_definition, study_names
from pipelines.studies.measures import KL, read_result
from tests.conftest import Run

OF_PPO = {"policy/clip_frac"}  # the tiny run is RLOO's


def named(study: str) -> tuple[set[str], set[str]]:
    """Metrics of summaries, and of the training's curve."""
    loaded = load_definition(study, "laptop")
    summary = {measure.of for measure in loaded.measures.values() if measure.take is None}
    curve = {measure.of for measure in loaded.measures.values() if measure.take is not None}
    drawn = {y for figure in loaded.figures if figure.kind in ("curves", "against_kl") for y in figure.y}
    return summary, curve | drawn


def test_what_the_studies_of_conf_read_is_there(tiny_run: Run) -> None:
    store = Store(tiny_run.root)
    stages = ("reward_model", "policy", "evaluation")
    fingerprints = {stage: next((tiny_run.root / "store" / stage).iterdir()).name for stage in stages}
    result = read_result(store, fingerprints, {}, 0, 1)
    measured = set().union(*result.curve)
    summaries, curves = (set().union(*sets) for sets in zip(*map(named, study_names()), strict=True))
    assert summaries <= result.summary.keys()
    assert curves - OF_PPO <= measured
    assert KL in measured
