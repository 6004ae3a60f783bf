"""Names of metrics: those that runs measure are known, any other is refused with the nearest."""

import pytest

from pipelines.config_errors import ConfigError
from pipelines.studies.metric_names import unknown_metric
from tests.pipelines.studies.examples import small


@pytest.mark.parametrize(
    ("name", "of_curve"),
    [
        ("validation/proxy_reward", True),
        ("policy/clip_frac", True),
        ("reward/short_mean", True),  # a term of the user's reward
        ("reward/mean", False),
        ("reward_model/accuracy", False),
        ("evaluation/policy_against_sft/greedy/win_rate_low", False),
        ("evaluation/sft/best_of_n/win_rate", False),
        ("evaluation/judges/rouge/policy/sampled/win_rate", False),
    ],
)
def test_what_runs_measure_is_known(name, of_curve):
    assert unknown_metric(name, of_curve) is None


@pytest.mark.parametrize(
    ("name", "of_curve", "sentence"),
    [
        (
            "validation/prxy_reward",
            True,
            "validation/prxy_reward; did you mean validation/proxy_reward?",
        ),
        ("evaluation/policy/sampled/winrate", False, "; did you mean evaluation/policy/sampled/win_rate?"),
        ("evaluation/policy/sampled/kl", True, "evaluation/policy/sampled/kl is measured at the end, not over the"),
        ("evaluation/judges/rouge/kappa", True, "no run measures evaluation/judges/rouge/kappa"),
        ("x", False, "no run measures x; those over the training begin with validation/ or reward/, those at the end"),
    ],
)
def test_what_no_run_measures_is_told_with_the_nearest(name, of_curve, sentence):
    assert sentence in unknown_metric(name, of_curve)


def test_a_misspelt_metric_is_refused_with_its_place(tmp_path):
    wrong = {"measures": {"gold": {"label": "x", "of": "validation/gold", "take": "last"}}}
    figures = [{"kind": "curves", "y": ["validation/gold_rewrd"], "caption": ""}]
    with pytest.raises(ConfigError) as refused:
        small(tmp_path, axes={}, figures=figures, **wrong)
    first, second = (problem.partition("small.yaml: ")[2] for problem in refused.value.problems)
    assert first.startswith("measures.gold.of: no run measures validation/gold")
    assert second == "figures.0.y: no run measures validation/gold_rewrd; did you mean validation/gold_reward?"
