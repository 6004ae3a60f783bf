"""Rules about what users bring: rewards, advantage functions, and what registers them."""

from collections.abc import Container, Mapping

from pipelines.config_errors import listed, nearest
from pipelines.config_sources import not_a_function
from rloo_core.algorithms.contradictions import ADVANTAGES
from rloo_core.data.files import SOURCES
from rloo_core.extensions import Kind, entry_point_names, location
from rloo_core.rules import Values, rule
from rloo_core.settings import ExperimentSettings

REWARDS = ("reward_model", "gold", "length_band", "repetition", "regular_expression", "sentiment")


def reward_names(terms: object) -> list[str]:
    """The function of each term of `reward.terms`, which is a list of names and mappings."""
    given = terms if isinstance(terms, list | tuple) else []
    return [str(term.get("function", "")) if isinstance(term, Mapping) else str(term) for term in given]


@rule("reward.terms")
def _rewards_are_known(v: Values) -> str | None:
    for name in reward_names(v["reward.terms"]):
        if name not in REWARDS and (problem := _unknown("rewards", "reward.terms", name, REWARDS)) is not None:
            return problem
    return None


@rule("algorithm.advantage")
def _advantage_is_known(v: Values) -> str | None:
    advantage = v["algorithm.advantage"]
    if advantage is None or advantage in ADVANTAGES:
        return None
    return _unknown("advantages", "algorithm.advantage", advantage, ADVANTAGES)


@rule("data.source")
def _source_is_known(v: Values) -> str | None:
    source = v["data.source"]
    return None if source in SOURCES else _unknown("data_sources", "data.source", source, SOURCES)


def _unknown(kind: Kind, key: str, name: str, own: tuple[str, ...]) -> str | None:
    """Why a name says nothing: it is none of ours, and no function that could be imported."""
    known = [*own, *entry_point_names(kind)]
    if ":" not in name and name not in known:
        return f"{key}: {name!r} is none of {listed(known, 'or')}, and no module:function{nearest(name, known)}"
    return not_a_function(f"{key}={name}", location(kind, name))


@rule("reward.terms", "data.source")
def _gold_reward_is_known(v: Values) -> str | None:
    if "gold" not in reward_names(v["reward.terms"]) or v["data.source"] == "synthetic":
        return None
    return f"reward.terms names gold, which only data.source=synthetic has, not {v['data.source']}; name another reward"


@rule("reward.terms", "reward_model.enabled")
def _reward_model_is_there(v: Values) -> str | None:
    if v["reward_model.enabled"] or "reward_model" not in reward_names(v["reward.terms"]):
        return None
    return (
        "reward.terms names reward_model, but reward_model.enabled=false; set reward_model=default, or other rewards, "
        "e.g. reward=sentiment"
    )


@rule("algorithm.advantage", "algorithm.critic.start", "reward_model.enabled")
def _critic_has_a_start(v: Values) -> str | None:
    if v["algorithm.advantage"] != "gae" or v["algorithm.critic.start"] != "reward_model" or v["reward_model.enabled"]:
        return None
    return "algorithm.critic.start=reward_model, but reward_model.enabled=false; set algorithm.critic.start=sft"


def functions_of(settings: ExperimentSettings, sections: Container[str]) -> list[str]:
    """`module:function` of everything of the user's that a stage with these sections of the settings calls."""
    found: list[str] = []
    if "data" in sections and settings.data.source not in SOURCES:
        found.append(location("data_sources", settings.data.source))
    if "reward" in sections:
        names = [term if isinstance(term, str) else term.function for term in settings.reward.terms]
        found += [location("rewards", name) for name in names if name not in REWARDS]
    advantage = settings.algorithm.advantage
    if "algorithm" in sections and advantage is not None and advantage not in ADVANTAGES:
        found.append(location("advantages", advantage))
    return found
