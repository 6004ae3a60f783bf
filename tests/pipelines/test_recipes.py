"""The library reads the very settings that Hydra composes."""

import pytest

from pipelines.config import load_settings
from pipelines.config_overrides import group_options
from rloo_core.api import recipe


@pytest.mark.parametrize("name", group_options()["algorithm"])
def test_a_recipe_is_what_hydra_composes(name):
    assert recipe(name, seed=7) == load_settings([f"algorithm={name}", "seed=7"]).algorithm


def test_changes_go_into_sections():
    changed = recipe("grpo", steps=3, kl={"target": 2.0})
    composed = load_settings(["algorithm=grpo", "algorithm.steps=3", "algorithm.kl.target=2.0"]).algorithm
    assert changed == composed


def test_what_does_not_exist_is_told():
    with pytest.raises(ValueError, match="there is no algorithm rlo; there are dapo, dpo, dr_grpo, grpo, gspo, ppo"):
        recipe("rlo")
    with pytest.raises(ValueError, match="group_siz"):
        recipe("rloo", group_siz=2)
