"""From a judge's name, as people type it, to the judge."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rloo_core.evaluation.judges import scores
from rloo_core.evaluation.judges.base import Judge, Question, Verdict
from rloo_core.evaluation.judges.scores import Score, ScoreJudge
from rloo_core.reward_models import load_reward_model
from rloo_core.settings import LlmJudgeSettings
from rloo_core.tokenization import ensure_pad_token, load_tokenizer

PLAIN: dict[str, Score] = {
    "gold": scores.gold_score,
    "length": scores.length_score,
    "brevity": scores.brevity_score,
    "rouge": scores.rouge_score,
}
GRAMMAR = (
    f"{', '.join(PLAIN)}, llm, reward:DIRECTORY (a reward model), function:MODULE:NAME (scores a completion) or "
    f"pairwise:MODULE:NAME (compares two)"
)


@dataclass(frozen=True)
class Means:
    """What judges are made from: the language model's settings, and how reward models read text."""

    llm: LlmJudgeSettings
    chat_template: bool
    max_tokens: int
    device: torch.device
    say: Callable[[str], None] = lambda line: None


def make_judge(name: str, means: Means) -> Judge:
    """A judge by name.

    Args:
        name: One of `GRAMMAR`.
        means: What it may need.

    Raises:
        ValueError: If there is no such judge, or it lacks what it needs; nothing has been judged.
    """
    kind, _, rest = name.partition(":")
    if name in PLAIN:
        return ScoreJudge(name, PLAIN[name])
    if name == "llm":
        return _language_model(means)
    if kind == "function" and rest:
        return ScoreJudge(name, scores.function_score(_function(name, rest), name))
    if kind == "pairwise" and rest:
        return PairwiseFunction(name, _function(name, rest))
    if kind == "reward" and rest:
        return ScoreJudge(name, _foreign_reward_model(rest, means))
    raise ValueError(f"there is no judge {name!r}; choose {GRAMMAR}")


class PairwiseFunction:
    """A Python function `f(prompts, first, second, **columns)` as judge.

    It returns, an entry a pair, 1 (the first is better), 0 (the second), 0.5 (a tie) or None (no verdict).

    Raises:
        ValueError: On a call, if it raises, or returns anything else.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function

    def __call__(self, questions: Sequence[Question]) -> list[Verdict]:
        names = [column for column in questions[0].row if column != "prompt"] if questions else []
        columns = {column: [question.row.get(column) for question in questions] for column in names}
        prompts = [question.prompt for question in questions]
        first, second = [question.first for question in questions], [question.second for question in questions]
        try:
            verdicts = list(self.function(prompts, first, second, **columns))
        except Exception as error:
            raise ValueError(f"the judge {self.name} raised {type(error).__name__}: {error}") from error
        wrong = [verdict for verdict in verdicts if verdict not in (0, 0.5, 1, None)]
        if wrong or len(verdicts) != len(questions):
            raise ValueError(
                f"the judge {self.name} must return {len(questions)} verdicts, each 1, 0.5, 0 or None; got "
                f"{len(verdicts)}{f', among them {wrong[0]!r}' if wrong else ''}"
            )
        return [None if verdict is None else float(verdict) for verdict in verdicts]

    def usage(self) -> Mapping[str, float]:
        """Nothing."""
        return {}


def _function(name: str, path: str) -> Callable[..., Any]:
    """Import `MODULE:NAME`."""
    try:
        function: Callable[..., Any] = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"judge {name}: {error}; it must read {name.partition(':')[0]}:MODULE:NAME") from error
    if not callable(function):
        raise ValueError(f"judge {name}: {path} is a {type(function).__name__}, not a function")
    return function


def _language_model(means: Means) -> Judge:
    try:
        from rloo_core.evaluation.judges.llm import LlmJudge
    except ImportError as error:
        raise ValueError(f"the judge llm needs {error.name}: pip install 'rloo[judges]'") from error
    return LlmJudge(means.llm, means.say)


def _foreign_reward_model(directory: str, means: Means) -> Score:
    """A sequence classifier with one output and its own tokenizer, which need not be the policy's."""
    if not (Path(directory) / "config.json").is_file():
        raise ValueError(f"judge reward:{directory}: there is no Hugging Face model (config.json) in that directory")
    tokenizer: PreTrainedTokenizerBase = load_tokenizer(directory)
    ensure_pad_token(tokenizer)
    model = load_reward_model(directory, tokenizer).to(means.device)
    return scores.reward_model_score(model, tokenizer, means.chat_template, means.max_tokens)
