"""What the evaluation stage makes of completions: scorecards, comparisons by every judge, the reward model's record."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rloo_core.data.tables import read_table
from rloo_core.data.tokens import token_ids
from rloo_core.evaluation.assessment import Assessment, Prompts
from rloo_core.evaluation.comparisons import Comparison, compare, from_scores
from rloo_core.evaluation.diversity import equal_length
from rloo_core.evaluation.intervals import paired_difference, win_rate, wins
from rloo_core.evaluation.judges.base import Judge, Question
from rloo_core.evaluation.preferences import calibration_curve, preference_measures
from rloo_core.evaluation.scorecard import first_texts, scorecard
from rloo_core.observer import Observer
from rloo_core.reward_models import load_reward_model, score_completions
from rloo_core.settings import ComputeSettings
from rloo_core.stages.common import MODEL, pad_id, stage_layout
from rloo_core.tokenization import load_tokenizer
from rloo_core.types import CompletionGroups

Arms = Mapping[tuple[str, str], Assessment]
"""Completions by (policy, way of decoding)."""

SHOWN = ("win_rate", "length_controlled_win_rate", "length_effect", "ties", "judged", "unparsed")


@dataclass(frozen=True)
class Pairing:
    """Completions to be compared, and what the stage's own judge scores them.

    Attributes:
        name: E.g. "policy/sampled" (against the references) or "policy_against_sft/sampled".
        mode: How the completions were decoded.
        texts: A's and B's completion of each pair.
        scores: The same pairs' scores.
        prompts: Index of each pair's prompt.
    """

    name: str
    mode: str
    texts: list[tuple[str, str]]
    scores: list[tuple[float, float]]
    prompts: list[int]

    def by_scores(self, seed: int) -> Comparison:
        """The comparison by the stage's own judge."""
        (ours, theirs), (a, b) = zip(*self.scores, strict=True), zip(*self.texts, strict=True)
        return from_scores(ours, theirs, a, b, self.prompts, seed)

    def questions(self, rows: Sequence[Mapping[str, Any]]) -> list[Question]:
        """The pairs as other judges see them."""
        return [
            Question(shown_text(rows[i]["prompt"]), a, b, rows[i])
            for i, (a, b) in zip(self.prompts, self.texts, strict=True)
        ]


def pairings(
    arms: Arms,
    scores: Mapping[tuple[str, str], Sequence[Sequence[float]]],
    references: Sequence[tuple[str, float]] | None,
    count: int,
) -> list[Pairing]:
    """Each policy against the references (where there are any), and the policy against SFT, by way of decoding.

    Args:
        arms: All completions; greedy ones have one a prompt.
        scores: Scores [P][K] of each arm by the stage's own judge.
        references: Text and score of each prompt's reference.
        count: Sampled completions a prompt that are compared.
    """
    found = []
    for (name, mode), arm in arms.items():
        pairs = [(p, k) for p, group in enumerate(arm.texts) for k in range(min(count, len(group)))]
        prompts = [p for p, _ in pairs]
        ours = [(arm.texts[p][k], scores[name, mode][p][k]) for p, k in pairs]
        opponents = {} if references is None else {f"{name}/{mode}": [references[p] for p in prompts]}
        if name != "sft":
            texts, values = arms["sft", mode].texts, scores["sft", mode]
            opponents[f"{name}_against_sft/{mode}"] = [(texts[p][k], values[p][k]) for p, k in pairs]
        for title, theirs in opponents.items():
            both = list(zip(ours, theirs, strict=True))
            pair_texts, pair_scores = [(a[0], b[0]) for a, b in both], [(a[1], b[1]) for a, b in both]
            found.append(Pairing(title, mode, pair_texts, pair_scores, prompts))
    return found


def scorecards(arms: Arms, count: int, references: Sequence[str] | None) -> dict[str, float]:
    """`evaluation/{policy}/{mode}/…` of every arm, and the equal length at which their diversity is compared."""
    words = equal_length([first_texts(arm, count) for arm in arms.values()])
    found = {"evaluation/equal_length": float(words)}
    for (name, mode), arm in arms.items():
        own = min(count, len(arm.texts[0]))
        measures = {"kl": 0.0, "kl_k3": 0.0} | scorecard(arm, own, words, references)  # SFT is the reference itself
        found |= {f"evaluation/{name}/{mode}/{measure}": value for measure, value in measures.items()}
    return found


def win_rates(compared: Mapping[str, Comparison]) -> dict[str, float]:
    """`evaluation/{pairing}/…` by the stage's own judge, and `evaluation/difference/{mode}/win_rate…`."""
    found = {
        f"evaluation/{name}/{measure}": value
        for name, comparison in compared.items()
        for measure, value in comparison.summary().items()
        if measure.startswith(SHOWN[:4])
    }
    for mode in ("greedy", "sampled"):
        if f"policy/{mode}" in compared and f"sft/{mode}" in compared:
            after, before = compared[f"policy/{mode}"], compared[f"sft/{mode}"]
            change = paired_difference(_decided(after), _decided(before), after.prompts, after.seed)
            found |= change.named(f"evaluation/difference/{mode}/win_rate")
    return found


def best_of_n(
    arm: Assessment, scores: Sequence[Sequence[float]], reference_scores: Sequence[float], seed: int
) -> dict[str, float]:
    """Win rate of the completion that the reward prefers among N of the SFT model."""
    best = arm.proxy_reward.nan_to_num(nan=-torch.inf).argmax(dim=1).tolist()
    chosen = [row[k] for row, k in zip(scores, best, strict=True)]
    return win_rate(wins(chosen, reference_scores), seed=seed).named("evaluation/sft/best_of_n/win_rate")


def further_judges(
    judges: Sequence[Judge], paired: Sequence[Pairing], own: Mapping[str, Comparison], prompts: Prompts, seed: int
) -> tuple[dict[str, float], dict[str, dict[str, Comparison]]]:
    """Every further judge's comparisons.

    Returns:
        `evaluation/judges/{judge}/{pairing}/…`, `…/agreement` and `…/kappa` (with the stage's own judge, over all
        pairs both decided) and what the judge cost; and the comparisons by judge and pairing.
    """
    # imported here: scikit-learn takes a second, and the default run has no further judges
    from rloo_core.evaluation.agreement import agreement

    summary: dict[str, float] = {}
    by_judge: dict[str, dict[str, Comparison]] = {}
    for judge in judges:
        name = label(judge.name)
        compared = {p.name: compare(judge, p.questions(prompts.rows), p.prompts, seed) for p in paired}
        by_judge[name] = compared
        for title, comparison in compared.items():
            values = {k: v for k, v in comparison.summary().items() if k.startswith((*SHOWN, "position", "first"))}
            summary |= {f"evaluation/judges/{name}/{title}/{measure}": value for measure, value in values.items()}
        outcomes = [outcome for comparison in compared.values() for outcome in comparison.outcomes()]
        agreed = agreement(outcomes, [outcome for title in compared for outcome in own[title].outcomes()])
        if agreed is not None:
            summary |= {f"evaluation/judges/{name}/agreement": agreed.share}
            summary |= {f"evaluation/judges/{name}/kappa": agreed.kappa}
        summary |= {f"evaluation/judges/{name}/{measure}": value for measure, value in judge.usage().items()}
    return summary, by_judge


def reward_model_record(
    inputs: Mapping[str, Path],
    chat_template: bool,
    compute: ComputeSettings,
    device: torch.device,
    seed: int,
    observer: Observer,
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Accuracy, calibration and length bias of the reward model on held-out preferences (test, else validation).

    Returns:
        `evaluation/reward_model/…` and the calibration curve; both empty where there is no model or no pair.
    """
    directory = inputs["reward_model"] / MODEL
    split = "test" if read_table(inputs["data"], "preferences", "test") else "validation"
    if not directory.exists() or not read_table(inputs["data"], "preferences", split):
        return {}, []
    tokenizer = load_tokenizer(str(directory))
    columns = ["prompt", "chosen", "rejected"]
    prompts, *sides = token_ids(inputs["data"], "preferences", split, columns, tokenizer, chat_template)
    completions = list(zip(*sides, strict=True))
    groups = CompletionGroups.from_ids(prompts, completions, pad_id(tokenizer))
    model = load_reward_model(directory, tokenizer).to(device)
    model.layout = stage_layout(model.classifier, compute, observer)
    chosen, rejected = score_completions(model, groups, compute.max_tokens_per_batch).T.tolist()
    lengths = [(len(pair[0]), len(pair[1])) for pair in completions]
    measures = preference_measures(chosen, rejected, lengths, seed) | {"pairs": float(len(prompts))}
    curve = calibration_curve([a - b for a, b in zip(chosen, rejected, strict=True)])
    return {f"evaluation/reward_model/{name}": value for name, value in measures.items()}, curve


def label(judge: str) -> str:
    """A judge's name as part of a metric's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in judge)


def shown_text(value: str | Sequence[Mapping[str, str]]) -> str:
    """A text, or chat messages as lines."""
    return value if isinstance(value, str) else "\n".join(f"{m['role']}: {m['content']}" for m in value)


def _decided(comparison: Comparison) -> list[float]:
    return [outcome for outcome in comparison.outcomes() if outcome is not None]
