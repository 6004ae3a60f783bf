"""How varied and how repetitive texts are. A text's n-grams are those of its words, as white space parts them.

The formulas of the paper's Div-1 and Div-2 are not published; these are distinct n-grams over all n-grams, averaged
over completions (Li et al. 2016, https://arxiv.org/abs/1510.03055, a completion at a time).
"""

from collections.abc import Sequence


def distinct(texts: Sequence[str], n: int, words: int | None = None) -> float | None:
    """Distinct n-grams over all n-grams of a completion, averaged over completions.

    Args:
        texts: Completions; those too short to hold an n-gram are left out.
        n: Length of the n-grams.
        words: Look at the first so many words of each completion, and leave out shorter ones: the plain value falls
            with length by itself, so policies that write at different lengths are compared at an equal one.

    Returns:
        Between 0 and 1; None where no completion is long enough.
    """
    split = [text.split() for text in texts]
    if words is not None:
        split = [text[:words] for text in split if len(text) >= words]
    shares = [len(set(grams)) / len(grams) for text in split if (grams := _n_grams(text, n))]
    return sum(shares) / len(shares) if shares else None


def repetition(texts: Sequence[str], n: int = 4) -> float | None:
    """Share of a completion's n-grams that it has said before, averaged (seq-rep-n of Welleck et al. 2020).

    References:
        https://arxiv.org/abs/1908.04319, section 4
    """
    value = distinct(texts, n)
    return None if value is None else 1.0 - value


def equal_length(groups: Sequence[Sequence[str]]) -> int:
    """The number of words that nine of ten completions reach in every one of several groups; at least 2."""
    reached = [sorted(len(text.split()) for text in texts)[len(texts) // 10] for texts in groups if texts]
    return max(2, min(reached, default=2))


def _n_grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
