"""From judgements of pairs to the numbers that a reader wants: rates with intervals, by length, at equal length."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rloo_core.evaluation.intervals import win_rate
from rloo_core.evaluation.judges.base import Judge, Judgement, Question, judge_both_orders
from rloo_core.evaluation.length_control import LengthBin, length_controlled_win_rate, win_rate_by_length


@dataclass(frozen=True)
class Comparison:
    """Judged pairs of A's and B's completions.

    Attributes:
        judgements: One a pair, seen from A.
        lengths: Of A's and B's completion, in characters.
        prompts: Which prompt each pair belongs to: the bootstrap draws prompts.
        seed: Of the bootstrap.
    """

    judgements: Sequence[Judgement]
    lengths: Sequence[tuple[float, float]]
    prompts: Sequence[int]
    seed: int = 0

    def outcomes(self) -> list[float | None]:
        """A's outcome of each pair: 1, 0.5, 0 or between; None where a verdict could not be read."""
        return [judgement.outcome for judgement in self.judgements]

    def summary(self) -> dict[str, float]:
        """What is worth a number.

        Returns:
            win_rate…            A's, with its interval; absent where no pair was decided
            length_controlled_win_rate…, length_effect
            ties                 share of decided pairs in which neither is better
            judged, unparsed     pairs decided; verdicts (two a pair) that could not be read
            position_consistency share of decided pairs with the same verdict in both orders
            first_preferred      share of decided verdicts for what stood first; 0.5 without position bias
        """
        return dict(self._summary)  # bootstraps are drawn once, however often it is read

    @cached_property
    def _summary(self) -> dict[str, float]:
        decided = [i for i, outcome in enumerate(self.outcomes()) if outcome is not None]
        found = {"judged": float(len(decided)), "unparsed": float(self._unparsed())}
        if not decided:
            return found
        outcomes, lengths, prompts = self._decided(decided)
        controlled = length_controlled_win_rate(outcomes, lengths, prompts, self.seed)
        found |= win_rate(outcomes, prompts, self.seed).named("win_rate")
        found |= controlled.rate.named("length_controlled_win_rate") | {"length_effect": controlled.length_effect}
        return found | self._orders(decided) | {"ties": outcomes.count(0.5) / len(outcomes)}

    def by_length(self) -> list[LengthBin]:
        """Win rates of pairs whose lengths differ alike."""
        decided = [i for i, outcome in enumerate(self.outcomes()) if outcome is not None]
        return win_rate_by_length(*self._decided(decided), self.seed) if decided else []

    def _decided(self, decided: Sequence[int]) -> tuple[list[float], list[tuple[float, float]], list[int]]:
        outcomes = [outcome for outcome in self.outcomes() if outcome is not None]
        return outcomes, [self.lengths[i] for i in decided], [self.prompts[i] for i in decided]

    def _unparsed(self) -> int:
        return sum(verdict is None for j in self.judgements for verdict in (j.a_first, j.b_first))

    def _orders(self, decided: Sequence[int]) -> dict[str, float]:
        both = [(self.judgements[i].a_first or 0.0, self.judgements[i].b_first or 0.0) for i in decided]
        first = [verdict for a_first, b_first in both for verdict in (a_first, 1.0 - b_first)]
        return {
            "position_consistency": sum(a == b for a, b in both) / len(both),
            "first_preferred": sum(first) / len(first),
        }


def compare(judge: Judge, questions: Sequence[Question], prompts: Sequence[int], seed: int = 0) -> Comparison:
    """Have a judge compare A (first) with B (second) in both orders.

    Args:
        judge: Any judge.
        questions: A pair each, A's completion first.
        prompts: Which prompt each pair belongs to.
        seed: Of the bootstrap.
    """
    lengths = [(float(len(question.first)), float(len(question.second))) for question in questions]
    return Comparison(judge_both_orders(judge, questions), lengths, prompts, seed)


def from_scores(
    scores: Sequence[float],
    opponent_scores: Sequence[float],
    texts: Sequence[str],
    opponent_texts: Sequence[str],
    prompts: Sequence[int],
    seed: int = 0,
) -> Comparison:
    """A comparison by scores that are known already: the higher one wins, in whichever order it stands."""
    verdicts = [0.5 if a == b else float(a > b) for a, b in zip(scores, opponent_scores, strict=True)]
    lengths = [(float(len(a)), float(len(b))) for a, b in zip(texts, opponent_texts, strict=True)]
    return Comparison([Judgement(verdict, verdict) for verdict in verdicts], lengths, prompts, seed)
