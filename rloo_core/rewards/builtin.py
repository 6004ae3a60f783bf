"""Rewards that need no model, as functions with the usual signature. Their further arguments come from `reward.terms`.

reward.terms=[{function: length_band, weight: 0.5, arguments: {low: 10, high: 30}}]
"""

import re
from collections.abc import Sequence
from typing import Any

from rloo_core.rewards.function import RewardFunction

WORD = re.compile(r"\w+(?:'\w+)?")


def length_band(completions: Sequence[str], low: int, high: int, slope: float = 0.1, **columns: Any) -> list[float]:
    """0 for completions of `low` to `high` words, -slope for each word outside, at most -1.

    Args:
        completions: Texts.
        low: Fewest words.
        high: Most words, at least `low`.
        slope: Reward units a word.
    """
    if low > high:
        raise ValueError(f"length_band needs low <= high; got low={low}, high={high} (reward.terms)")
    counts = [len(WORD.findall(text)) for text in completions]
    return [-min(1.0, slope * max(low - count, count - high, 0)) for count in counts]


def repetition(completions: Sequence[str], n: int = 3, **columns: Any) -> list[float]:
    """Minus the part of a completion's word n-grams that have occurred in it before: 0 for none, towards -1 for a loop.

    Args:
        completions: Texts; one with fewer than two n-grams has nothing to repeat.
        n: Words of an n-gram.
    """
    return [-_repeated(WORD.findall(text.lower()), n) for text in completions]


def regular_expression(
    completions: Sequence[str], pattern: str, hit: float = 1.0, miss: float = 0.0, **columns: Any
) -> list[float]:
    """`hit` where the pattern is found in the completion (anchor it with ^ and $ for the whole), `miss` elsewhere."""
    found = re.compile(pattern)
    return [hit if found.search(text) else miss for text in completions]


def sentiment(completions: Sequence[str], **columns: Any) -> list[float]:
    """How positive a completion is, -1 to 1, by VADER's lexicon and rules.

    Raises:
        ImportError: If vaderSentiment is not installed.

    References:
        Hutto & Gilbert 2014, https://ojs.aaai.org/index.php/ICWSM/article/view/14550
    """
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError as error:
        raise ImportError("the reward `sentiment` needs vaderSentiment: pip install 'rloo[sentiment]'") from error
    analyzer = SentimentIntensityAnalyzer()
    return [float(analyzer.polarity_scores(text)["compound"]) for text in completions]


def _repeated(words: Sequence[str], n: int) -> float:
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if len(grams) > 1 else 0.0


BUILT_IN: dict[str, RewardFunction] = {
    "length_band": length_band,
    "repetition": repetition,
    "regular_expression": regular_expression,
    "sentiment": sentiment,
}
