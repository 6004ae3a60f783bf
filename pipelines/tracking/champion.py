"""The alias `champion`: the best policy that a full run has evaluated, by a rule that is stated.

A policy becomes champion where there is none if its sampled win rate is above its own SFT model's (the 95 % interval of
the paired difference lies above zero); later only if the champion's sampled win rate lies below the 95 % interval of
its own. Both must have been measured on the same test prompts, in the same way, by the same judge: the same *basis*.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.digests import sha256_of_text
from pipelines.store import Manifest
from pipelines.tracking.connection import is_refusal

ALIAS = "champion"
RATE, DIFFERENCE = "evaluation/policy/sampled/win_rate", "evaluation/difference/sampled/win_rate"
MEASURED = ("prompts", "temperature", "max_new_tokens", "completions", "judge")  # settings that decide what is measured
TAG = "evaluation.{}"


@dataclass(frozen=True)
class Score:
    """What the rule looks at; rates between 0 and 1."""

    basis: str
    rate: float
    low: float
    high: float

    def tag(self) -> tuple[str, str]:
        """For the model version: a version may have been evaluated in several ways."""
        return TAG.format(self.basis), json.dumps({"rate": self.rate, "low": self.low, "high": self.high})

    @classmethod
    def of(cls, version: ModelVersion, basis: str) -> "Score | None":
        """What a version's tags say; None if it was not evaluated that way."""
        try:
            return cls(basis, **json.loads(version.tags[TAG.format(basis)]))
        except (KeyError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"{100 * self.rate:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def score_of(evaluation: Manifest, data: Path) -> Score | None:
    """The score that an evaluation gives; None where it has no win rates.

    Args:
        evaluation: Manifest of the evaluation stage.
        data: Output directory of the data stage.
    """
    names = (RATE, f"{RATE}_low", f"{RATE}_high")
    if any(name not in evaluation.summary for name in names):
        return None
    return Score(basis_of(evaluation, data), *(evaluation.summary[name] for name in names))


def basis_of(evaluation: Manifest, data: Path) -> str:
    """What makes two evaluations comparable, as a digest: test prompts, way of sampling, judge."""
    about = json.loads((data / "dataset.json").read_text(encoding="utf-8"))
    settings = {name: evaluation.parts.get(f"settings/evaluation.{name}") for name in MEASURED}
    gold = about["source"] == "synthetic" and settings["judge"] in ("auto", "gold")
    reward = {name: value for name, value in evaluation.parts.items() if name.startswith("settings/reward.")}
    basis = {
        "test": about["tables"]["prompts-test"]["sha256"],
        "settings": settings,
        "judge": "gold" if gold else [evaluation.inputs["reward_model"]["digest"], reward],
    }
    return sha256_of_text(json.dumps(basis, sort_keys=True))[:16]


def decide(score: Score, summary: Mapping[str, float], champion: Score | None, there_is_one: bool) -> tuple[bool, str]:
    """Whether a policy becomes champion, and why.

    Args:
        score: Its own.
        summary: Of its evaluation.
        champion: The champion's score on the same basis, if it is known.
        there_is_one: Whether there is a champion.
    """
    if not there_is_one:
        better = summary.get(f"{DIFFERENCE}_low", 0.0) > 0
        return better, f"win rate {score}, {'above' if better else 'not surely above'} its own SFT model's"
    if champion is None:
        return False, "the champion was evaluated on other prompts, in another way or by another judge"
    better = champion.rate < score.low
    return better, f"win rate {score}, the champion's {champion}"


def crown(client: MlflowClient, version: ModelVersion, score: Score, summary: Mapping[str, float]) -> str:
    """Note a policy's score on its version, and move the alias if the rule says so. Returns what to tell a person."""
    client.set_model_version_tag(version.name, version.version, *score.tag())
    current = champion_of(client, version.name)
    if current is not None and str(current.version) == str(version.version):
        return f"champion   {version.name} version {version.version}, as before"
    becomes, why = decide(score, summary, Score.of(current, score.basis) if current else None, current is not None)
    if becomes:
        client.set_registered_model_alias(version.name, ALIAS, str(version.version))
        return f"champion   {version.name} version {version.version}: {why}"
    stays = f"stays version {current.version}" if current else "none yet"
    return f"champion   {stays}: {why}"


def champion_of(client: MlflowClient, name: str) -> ModelVersion | None:
    """The version that carries the alias."""
    try:
        return client.get_model_version_by_alias(name, ALIAS)
    except MlflowException as error:
        if is_refusal(error):
            return None
        raise
