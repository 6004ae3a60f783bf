"""Judges that score each completion by itself: the higher score wins, whatever the order."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rloo_core.data.synthetic import gold_rewards
from rloo_core.evaluation.judges.base import Question, Verdict
from rloo_core.evaluation.overlap import rouge
from rloo_core.reward_models import RewardModel, score_completions
from rloo_core.tokenization import encode_completion, encode_prompt
from rloo_core.types import CompletionGroups

Score = Callable[[Sequence[str], Sequence[str], Sequence[Mapping[str, Any]]], Sequence[float]]
"""From prompts, completions and the prompts' further columns, an entry a completion, to one number each."""


class ScoreJudge:
    """Prefers the completion with the higher score; equal scores are a tie.

    Args:
        name: What it is called in results.
        score: The score.
    """

    def __init__(self, name: str, score: Score) -> None:
        self.name = name
        self.score = score

    def __call__(self, questions: Sequence[Question]) -> list[Verdict]:
        """Scores every completion once, however often it is compared."""
        answers: dict[tuple[str, str, int], Mapping[str, Any]] = {}
        for question in questions:
            for completion in (question.first, question.second):
                answers[question.prompt, completion, id(question.row)] = question.row
        keys = list(answers)
        values = self.score([key[0] for key in keys], [key[1] for key in keys], [answers[key] for key in keys])
        scores = dict(zip(keys, values, strict=True))
        return [_higher(scores[q.prompt, q.first, id(q.row)], scores[q.prompt, q.second, id(q.row)]) for q in questions]

    def usage(self) -> Mapping[str, float]:
        """Nothing."""
        return {}


def _higher(first: float, second: float) -> float:
    return 0.5 if first == second else float(first > second)


def length_score(prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Characters: the yardstick that any judge worth its cost must beat."""
    return [float(len(text)) for text in completions]


def brevity_score(prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Minus the number of characters."""
    return [-float(len(text)) for text in completions]


def rouge_score(prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """ROUGE-L (F1) against the row's `reference`.

    Raises:
        ValueError: If a row has no reference.
    """
    missing = sum(not row.get("reference") for row in rows)
    if missing:
        raise ValueError(
            f"the judge rouge compares with references, but {missing} of {len(rows)} completions have none; add a "
            f"`reference` column, or choose another judge"
        )
    return [rouge(text, row["reference"])["rougeL"] for text, row in zip(completions, rows, strict=True)]


def gold_score(prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """The true reward of the embedded task.

    Raises:
        ValueError: If the rows are not of the embedded task.
    """
    if any("facts" not in row for row in rows):
        raise ValueError(
            "the judge gold knows the embedded task alone, whose rows have `facts`; choose reward, rouge, length, llm "
            "or a function"
        )
    return list(gold_rewards(prompts=prompts, completions=completions, facts=[row["facts"] for row in rows]))


def function_score(function: Callable[..., Any], name: str) -> Score:
    """Scores of `f(prompts, completions, **columns)`, the convention of reward functions.

    Raises:
        ValueError: On a call, if the function raises, or returns anything but one finite number a completion.
    """

    def score(prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        names = [column for column in rows[0] if column not in ("prompt", "completion")] if rows else []
        columns = {column: [row.get(column) for row in rows] for column in names}
        try:
            values = list(function(prompts=prompts, completions=completions, **columns))
        except Exception as error:
            raise ValueError(f"the judge {name} raised {type(error).__name__}: {error}") from error
        if len(values) != len(completions) or not all(_finite(value) for value in values):
            raise ValueError(
                f"the judge {name} must return {len(completions)} finite numbers, one a completion; got {len(values)} "
                f"values, {values[:3]}…"
            )
        return [float(value) for value in values]

    return score


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def reward_model_score(
    model: RewardModel, tokenizer: PreTrainedTokenizerBase, chat_template: bool, max_tokens: int
) -> Score:
    """Scores of a reward model, tokenised as for its training: prompt, completion, EOS."""

    def score(prompts: Sequence[str], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        groups = CompletionGroups.from_ids(
            [encode_prompt(tokenizer, prompt, chat_template) for prompt in prompts],
            [[encode_completion(tokenizer, text)] for text in completions],
            int(tokenizer.pad_token_id),
        )
        values: list[float] = score_completions(model, groups, max_tokens)[:, 0].tolist()
        return values

    return score
