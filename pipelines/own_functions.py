"""What a run calls besides our own code, imported and looked at before any work: a slip would show after hours."""

import inspect
from collections.abc import Mapping
from importlib.util import find_spec

from pipelines.config_errors import ConfigError
from rloo_core.algorithms.choices import own_advantage
from rloo_core.data.files import SOURCES
from rloo_core.extensions import load_extension
from rloo_core.rewards.builtin import BUILT_IN
from rloo_core.rewards.function import OFFERED, reward_parameters
from rloo_core.settings import ExperimentSettings, RewardTerm
from rloo_core.stages.rewards import GOLD, REWARD_MODEL, terms


def check_own_functions(settings: ExperimentSettings) -> None:
    """Import what the settings name, and see that it can be called.

    Raises:
        ConfigError: If something cannot be imported, is no function, or does not take what it is given.
    """
    try:
        for term in terms(settings.reward):
            if term.function not in (REWARD_MODEL, GOLD):
                _check_reward(term)
        own_advantage(settings.algorithm)
        if settings.data.source not in SOURCES:
            load_extension("data_sources", settings.data.source)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_reward(term: RewardTerm) -> None:
    own = BUILT_IN.get(term.function)
    parameters = reward_parameters(own or load_extension("rewards", term.function), term.arguments)
    if own is not None:
        _check_arguments(term, parameters)
    if term.function == "sentiment" and find_spec("vaderSentiment") is None:
        raise ValueError("the reward `sentiment` needs vaderSentiment: pip install 'rloo[sentiment]'")


def _check_arguments(term: RewardTerm, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Of ours it is known what they need; a user's function may need columns of the data."""
    named = {name: p for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD and name not in OFFERED}
    wrong = [name for name in term.arguments if name not in named]
    missing = [name for name, p in named.items() if p.default is p.empty and name not in term.arguments]
    if wrong or missing:
        needs = ", ".join(f"{name}{'' if p.default is p.empty else f'={p.default}'}" for name, p in named.items())
        what = f"has no argument {wrong[0]}" if wrong else f"misses the argument {missing[0]}"
        raise ValueError(f"reward.terms: {term.function} {what}; its arguments are {needs or 'none'}")
