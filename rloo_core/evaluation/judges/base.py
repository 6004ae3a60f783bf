"""What every judge does, and the two orders in which every pair is put before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Verdict = float | None
"""1: the first completion is better; 0: the second; 0.5: neither. None: the judge gave no verdict that can be read."""


class JudgeError(RuntimeError):
    """A judge cannot decide at all: a server is away, a key is missing. What it has decided is kept."""


@dataclass(frozen=True)
class Question:
    """Two completions of one prompt in the order a judge sees them, and the prompt's further columns."""

    prompt: str
    first: str
    second: str
    row: Mapping[str, Any]

    def swapped(self) -> "Question":
        return Question(self.prompt, self.second, self.first, self.row)


class Judge(Protocol):
    """Anything that compares completions."""

    name: str

    def __call__(self, questions: Sequence[Question]) -> list[Verdict]:
        """One verdict a question."""

    def usage(self) -> Mapping[str, float]:
        """What its answers so far cost; nothing for judges that cost nothing."""


@dataclass(frozen=True)
class Judgement:
    """Both verdicts on A against B, each seen from A: asked with A first, and with B first."""

    a_first: Verdict
    b_first: Verdict

    @property
    def outcome(self) -> Verdict:
        """Their mean; None unless both could be read, since one order alone may be decided by position."""
        if self.a_first is None or self.b_first is None:
            return None
        return (self.a_first + self.b_first) / 2


def judge_both_orders(judge: Judge, questions: Sequence[Question]) -> list[Judgement]:
    """Ask about every pair twice, with A (the question's first completion) in front and behind.

    Returns:
        A judgement a question, unswapped: 1 always means that A is better.
    """
    verdicts = judge([*questions, *(question.swapped() for question in questions)])
    given, swapped = verdicts[: len(questions)], verdicts[len(questions) :]
    return [
        Judgement(verdict, None if other is None else 1.0 - other)
        for verdict, other in zip(given, swapped, strict=True)
    ]
