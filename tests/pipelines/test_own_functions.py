# ruff: noqa: E501  (the sentences are what is tested, each on one line)
"""A user's functions are looked at before any work."""

import pytest

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.config_overrides import group_options
from pipelines.own_functions import check_own_functions

MODULE = """
def good(prompts, completions, **columns): return [0.0] * len(completions)
def with_column(completions, answer): return [0.0] * len(completions)
def by_place(prompts, completions, /): return [0.0] * len(completions)
number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_own_rewards.py").write_text(MODULE)
    (tmp_path / "my_broken_rewards.py").write_text("import no_such_module_anywhere\ndef score(completions): ...\n")
    (tmp_path / "my_failing_rewards.py").write_text("def score(completions): ...\n1 / 0\n")


def problem(term):
    with pytest.raises(ConfigError) as caught:
        check_own_functions(load_settings([f"reward.terms=[{term}]"]))
    (sentence,) = caught.value.problems
    return sentence


def test_what_can_be_called_passes(module):
    for term in ("my_own_rewards:good", "my_own_rewards:with_column"):
        check_own_functions(load_settings([f"reward.terms=['{term}', reward_model]"]))
    check_own_functions(load_settings(["reward.terms=[{function: length_band, arguments: {low: 1, high: 2}}]"]))


@pytest.mark.parametrize("name", group_options()["algorithm"])
def test_every_algorithm_of_ours_passes(name):
    check_own_functions(load_settings([f"algorithm={name}"]))


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("length_band", "reward.terms: length_band misses the argument low; its arguments are low, high, slope=0.1"),
        ("{function: repetition, arguments: {m: 2}}", "reward.terms: repetition has no argument m; its arguments are n=3"),
        ("'my_own_rewards:number'", "my_own_rewards:number is a int, not a function"),
        ("'my_own_rewards:by_place'", "reward function by_place(prompts, completions) takes prompts by its place alone"),
        ("{function: 'my_own_rewards:with_column', arguments: {m: 2}}", "reward function with_column(completions, answer) takes no argument m"),
        ("'my_broken_rewards:score'", "my_broken_rewards:score: No module named 'no_such_module_anywhere'"),
        ("'my_failing_rewards:score'", "my_failing_rewards:score: importing my_failing_rewards raised ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_cannot_is_told_before_any_work(module, term, message):
    assert problem(term).startswith(message)
