"""What is left out of a study where nobody knows the true reward, and that it is said."""

import pytest

from pipelines.config_errors import ConfigError
from pipelines.studies.loading import load_definition, study_names
from pipelines.studies.measurable import measurable
from pipelines.studies.metric_names import needs_gold
from tests.pipelines.studies.examples import small


@pytest.mark.parametrize("study", study_names())
def test_real_data_leave_out_the_true_reward_and_say_so(study):
    whole = load_definition(study, "paper")
    left, warnings = measurable(whole, {"hh"})
    assert not any(needs_gold(measure.of) for measure in left.measures.values())
    assert not any("gold" in y for figure in left.figures for y in figure.y)
    named = {name for table in left.tables for name in table.measures} | {claim.measure for claim in left.claims}
    assert named <= left.measures.keys()
    assert left.claims
    assert left.figures
    gone = [measure.label for name, measure in whole.measures.items() if name not in left.measures]
    assert gone
    assert all(label in warnings[0] for label in gone)
    assert left.notes[-len(warnings) :] == tuple(warnings)  # on the page, too


def test_the_embedded_task_measures_everything():
    study = load_definition("algorithms", "laptop")
    assert measurable(study, {"synthetic", "hh"}) == (study, [])


def test_who_judges_real_completions_is_said():
    """The reward that training maximises, of itself."""
    _, warnings = measurable(load_definition("algorithms", "paper"), {"hh"})
    assert warnings[0].endswith("; and 1 claim about it")
    assert warnings[1].startswith("Win rates are by the reward that training maximises")


def test_a_study_of_the_true_reward_alone_is_refused_on_real_data(tmp_path):
    gold = {"gold": {"label": "x", "of": "validation/gold_reward", "take": "last"}}
    with pytest.raises(ConfigError, match=r"which data\.source=hh has not"):
        measurable(small(tmp_path, measures=gold), {"hh"})
