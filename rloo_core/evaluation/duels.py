"""Two sets of completions that came from anywhere, prompt by prompt, before any number of judges and people."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rloo_core.evaluation.agreement import Agreement, agreement, decided_accuracy, majority
from rloo_core.evaluation.comparisons import Comparison, compare
from rloo_core.evaluation.diversity import equal_length
from rloo_core.evaluation.judges.base import Judge, Question
from rloo_core.evaluation.overlap import mean_rouge
from rloo_core.evaluation.scorecard import text_measures

Row = Mapping[str, Any]
LABELS = {"0": 0.5, "tie": 0.5, "1": 1.0, "a": 1.0, "2": 0.0, "b": 0.0, "": None, "none": None}


@dataclass(frozen=True)
class Pairs:
    """Completions of A and B on the same prompts.

    Attributes:
        questions: A pair each, A's completion first; its row holds the columns of both, A's where both have one.
        prompts: Index of each pair's prompt.
        unmatched: Completions of A, and of B, on prompts of which the other has fewer.
    """

    questions: list[Question]
    prompts: list[int]
    unmatched: tuple[int, int]


def pair_up(a: Sequence[Row], b: Sequence[Row]) -> Pairs:
    """Let A's and B's completions of a prompt meet: the first one the first, the second one the second, and so on.

    Args:
        a: Rows with `prompt` and `completion` (both text), and any further columns.
        b: The other side's.

    Raises:
        ValueError: If no prompt is on both sides.
    """
    theirs: dict[str, list[Row]] = defaultdict(list)
    for row in b:
        theirs[row["prompt"]].append(row)
    indices: dict[str, int] = {}
    questions, prompts = [], []
    for row in a:
        waiting = theirs[row["prompt"]]
        if waiting:
            other = waiting.pop(0)
            questions.append(Question(row["prompt"], row["completion"], other["completion"], {**other, **row}))
            prompts.append(indices.setdefault(row["prompt"], len(indices)))
    if not questions:
        raise ValueError(
            f"no prompt of the one side ({len(a)} rows) is a prompt of the other ({len(b)} rows); completions are "
            f"compared where the text of `prompt` is the same"
        )
    return Pairs(questions, prompts, (len(a) - len(questions), sum(map(len, theirs.values()))))


@dataclass(frozen=True)
class Duel:
    """What judges, and people, say of pairs.

    Attributes:
        comparisons: By judge.
        agreements: Of every two judges or people, by their names.
        people: What each person said, seen from A.
        accuracy: Share of clear majorities of people that a judge shares, by judge.
        measures: Of A's and B's texts by themselves.
        usage: What each judge's answers cost, where they cost anything.
    """

    comparisons: dict[str, Comparison]
    agreements: dict[tuple[str, str], Agreement]
    people: dict[str, list[float | None]]
    accuracy: dict[str, float]
    measures: tuple[dict[str, float], dict[str, float]]
    usage: dict[str, dict[str, float]]

    def summary(self) -> dict[str, float]:
        """All numbers by name."""
        found: dict[str, float] = {}
        for judge, comparison in self.comparisons.items():
            found |= {f"{judge}/{name}": value for name, value in comparison.summary().items()}
            found |= {f"{judge}/{name}": value for name, value in self.usage[judge].items()}
        found |= {f"{judge}/accuracy": value for judge, value in self.accuracy.items()}
        for (one, other), agreed in self.agreements.items():
            found |= {f"agreement/{one}/{other}": agreed.share, f"kappa/{one}/{other}": agreed.kappa}
        for side, measures in zip("ab", self.measures, strict=True):
            found |= {f"{side}/{name}": value for name, value in measures.items()}
        return found


def duel(pairs: Pairs, judges: Sequence[Judge], labels: Sequence[str] = (), seed: int = 0) -> Duel:
    """Have every judge decide every pair in both orders, and compare them with each other and with people.

    Args:
        pairs: The pairs.
        judges: Their names differ.
        labels: Columns with people's votes: 1 or "a" for A, 2 or "b" for B, 0 or "tie", empty for none.
        seed: Of the bootstrap.

    Raises:
        ValueError: If a vote is none of these.
    """
    people = {name: [outcome_of(question.row.get(name), name) for question in pairs.questions] for name in labels}
    comparisons = {judge.name: compare(judge, pairs.questions, pairs.prompts, seed) for judge in judges}
    said = {name: comparison.outcomes() for name, comparison in comparisons.items()} | people
    agreed = {(a, b): agreement(said[a], said[b]) for a, b in combinations(said, 2)}
    votes = zip(*people.values(), strict=True) if people else ()
    most = [majority([vote for vote in three if vote is not None]) for three in votes]
    accuracy = {name: decided_accuracy(comparisons[name].outcomes(), most) for name in comparisons if people}
    return Duel(
        comparisons,
        {names: found for names, found in agreed.items() if found is not None},
        people,
        {name: value for name, value in accuracy.items() if value is not None},
        _measures(pairs),
        {judge.name: dict(judge.usage()) for judge in judges},
    )


def outcome_of(label: object, column: str) -> float | None:
    """A person's vote as an outcome seen from A.

    Raises:
        ValueError: If it is no vote.
    """
    text = "" if label is None else str(label).strip().lower().removesuffix(".0")
    if text not in LABELS:
        raise ValueError(
            f"{column} holds {label!r}, but a vote is 1 or a (A is better), 2 or b (B), 0 or tie, or empty"
        )
    return LABELS[text]


def _measures(pairs: Pairs) -> tuple[dict[str, float], dict[str, float]]:
    texts = [[question.first for question in pairs.questions], [question.second for question in pairs.questions]]
    words = equal_length(texts)
    references = [question.row.get("reference") for question in pairs.questions]
    found = []
    for side in texts:
        measures = {"characters": sum(map(len, side)) / len(side)} | text_measures(side, words)
        if all(isinstance(reference, str) and reference for reference in references):
            measures |= mean_rouge(side, [str(reference) for reference in references])
        found.append(measures)
    return found[0], found[1]
