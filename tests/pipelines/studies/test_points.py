"""The points of a study: every cell with every seed, and what several of them need."""

import pytest

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.studies.points import points_of, shared
from tests.pipelines.studies.examples import small


@pytest.fixture(scope="module")
def policy_seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("points")
    return points_of(small(folder), str(folder))


@pytest.fixture(scope="module")
def reward_model_seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("points")
    seeds = {"count": 3, "first": 5, "vary": "reward_model", "fixed": 2}
    return points_of(small(folder, seeds=seeds), str(folder))


@pytest.fixture(scope="module")
def seeds_of_everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("points")
    seeds = {"count": 3, "first": 5, "vary": "everything"}
    return points_of(small(folder, seeds=seeds, until="evaluation"), str(folder))


def test_every_cell_with_every_seed_and_the_first_seed_first(policy_seeds):
    assert len(policy_seeds) == 2 * 2 * 3
    assert [point.seed for point in policy_seeds] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({point.name for point in policy_seeds}) == 12
    assert policy_seeds[7].name == "method=raft, sigma=3.0, seed=1"
    assert policy_seeds[7].cell == {"method": "raft", "sigma": "3.0"}
    assert policy_seeds[7].settings.algorithm.reward_noise == 3.0
    assert policy_seeds[7].settings.algorithm.name == "raft"


def test_a_seed_of_the_policy_leaves_what_comes_before_it(policy_seeds):
    for point in policy_seeds:
        found = point.settings
        assert (found.algorithm.seed, found.evaluation.seed) == (point.seed, point.seed)
        assert (found.seed, found.sft.seed, found.reward_model.seed) == (0, 0, 0)


def test_a_seed_of_everything_varies_all_that_is_trained(seeds_of_everything):
    assert {point.seed for point in seeds_of_everything} == {5, 6, 7}
    for point in seeds_of_everything:
        found = point.settings
        trained = (found.sft.seed, found.reward_model.seed, found.algorithm.seed, found.evaluation.seed)
        assert trained == (point.seed,) * 4
        assert found.data.seed == 0


def test_a_seed_of_the_reward_model_leaves_sft(reward_model_seeds):
    assert {point.seed for point in reward_model_seeds} == {5, 6, 7}
    for point in reward_model_seeds:
        found = point.settings
        assert (found.reward_model.seed, found.algorithm.seed, found.evaluation.seed) == (point.seed,) * 3
        assert (found.seed, found.sft.seed) == (2, 2)


@pytest.mark.parametrize("points", ["policy_seeds", "reward_model_seeds", "seeds_of_everything"])
def test_composing_a_cell_once_gives_what_composing_each_point_gives(points, request):
    for point in request.getfixturevalue(points)[::5]:
        assert point.settings == load_settings(point.overrides)


def test_a_studys_models_are_not_registered_unless_it_is_wished(tmp_path):
    (point,) = points_of(small(tmp_path, axes={}, measures={}, count=1), str(tmp_path))
    assert (point.name, point.cell) == ("seed=0", {})
    assert not point.settings.tracking.register_models
    typed = ("tracking.register_models=true", "tracking.champion=true")
    wished = small(tmp_path, axes={}, measures={}, count=1, overrides=typed)
    tracking = points_of(wished, str(tmp_path))[0].settings.tracking
    assert tracking.register_models
    assert not tracking.champion  # one of many that were tried is no champion, whatever is typed


def needs(points):
    """Number of shared outputs, by stage."""
    waves = shared(points)
    assert [{key.partition(" ")[0] for key in wave} for wave in waves] == [{stage} for stage in stages_of(waves)]
    return dict(zip(stages_of(waves), map(len, waves), strict=True))


def stages_of(waves):
    return [next(iter(wave)).partition(" ")[0] for wave in waves]


def test_points_that_differ_in_their_algorithm_share_all_before_it(policy_seeds):
    assert needs(policy_seeds) == {"data": 1, "sft": 1, "reward_model": 1}


def test_with_seeds_of_everything_each_seed_has_its_own(seeds_of_everything):
    assert needs(seeds_of_everything) == {"data": 1, "sft": 3, "reward_model": 3}


def test_with_seeds_of_the_reward_model_all_share_sft(reward_model_seeds):
    assert needs(reward_model_seeds) == {"data": 1, "sft": 1, "reward_model": 3}


def test_what_one_point_needs_alone_is_not_shared(policy_seeds):
    assert shared(policy_seeds[:1]) == []


def test_points_with_data_of_their_own_share_nothing(tmp_path):
    axes = {"data": {"setting": "data.seed", "values": [0, 1]}}
    assert shared(points_of(small(tmp_path, axes=axes, measures={}, count=1), str(tmp_path))) == []


def test_a_wrong_setting_of_one_cell_is_told_with_the_cell(tmp_path):
    study = small(tmp_path, axes={"K": {"setting": "algorithm.group_size", "values": [2, 1]}}, measures={})
    with pytest.raises(ConfigError) as refused:
        points_of(study, str(tmp_path))
    (problem,) = refused.value.problems
    assert problem.startswith(f"study {tmp_path}/small.yaml, K=1: algorithm.group_size=1, but algorithm=rloo compares")


def test_cells_with_the_same_settings_are_refused(tmp_path):
    """They would be one point, shown twice; 1 and 1.0 are one number, however it is written."""
    axes = {
        "noise": {"label": "σ", "values": {"1": ["algorithm.reward_noise=1"], "one": ["algorithm.reward_noise=1.0"]}}
    }
    with pytest.raises(ConfigError) as refused:
        points_of(small(tmp_path, axes=axes, measures={}), str(tmp_path))
    (problem,) = refused.value.problems
    assert problem.endswith("small.yaml: noise=1 and noise=one have the same settings; leave one of them out")


def test_a_wrong_setting_of_all_cells_is_told_once(tmp_path):
    with pytest.raises(ConfigError) as refused:
        points_of(small(tmp_path, overrides=("algorithm.stepz=3",)), str(tmp_path))
    (problem,) = refused.value.problems
    assert problem.endswith("small.yaml: there is no setting algorithm.stepz; did you mean algorithm.steps?")
