"""Overlap of texts: ROUGE against references, self-BLEU among samples; both as their libraries define them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

KINDS = ("rouge1", "rouge2", "rougeL")
ORDER = 4  # of BLEU: the longest n-grams


def rouge(completion: str, reference: str) -> dict[str, float]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L, without stemming, between 0 and 1.

    References:
        Lin 2004; https://github.com/google-research/google-research/tree/master/rouge
    """
    scores: Mapping[str, Any] = _scorer().score(reference, completion)
    return {kind: float(scores[kind].fmeasure) for kind in KINDS}


def mean_rouge(completions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean over completions of each kind."""
    scores = [rouge(text, reference) for text, reference in zip(completions, references, strict=True)]
    return {kind: sum(score[kind] for score in scores) / len(scores) for kind in KINDS}


def self_bleu(completions: Sequence[str]) -> float:
    """Mean BLEU-4 of each completion with all others as its references, between 0 and 1; low is diverse.

    Args:
        completions: Two or more. The value rises with their number, so compare equal numbers only.

    References:
        Zhu et al. 2018, https://arxiv.org/abs/1802.01886; BLEU as in sacrebleu, smoothed (exp), 13a tokenisation
    """
    if len(completions) < 2:
        raise ValueError(f"self-BLEU compares completions with each other, two or more; got {len(completions)}")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.helpers import extract_all_word_ngrams

    metric = BLEU(effective_order=True)
    counted = [extract_all_word_ngrams(metric.tokenizer(text.rstrip()), 1, ORDER) for text in completions]
    most = _largest_counts([ngrams for ngrams, _ in counted])
    lengths = [length for _, length in counted]
    scores = []
    for i, (ngrams, length) in enumerate(counted):
        matched, total = [0] * ORDER, [max(0, length - n) for n in range(ORDER)]
        for ngram, count in ngrams.items():
            best, owner, second = most[ngram]
            matched[len(ngram) - 1] += min(count, second if owner == i else best)
        closest = min((*lengths[:i], *lengths[i + 1 :]), key=lambda other: (abs(other - length), other))
        scores.append(BLEU.compute_bleu(matched, total, length, closest, "exp", effective_order=True).score)
    return float(sum(scores) / len(scores) / 100)


def _largest_counts(counted: Sequence[Mapping[Any, int]]) -> dict[Any, tuple[int, int, int]]:
    """Of each n-gram: the largest count in a text, whose it is, and the largest in any other text."""
    found: dict[Any, tuple[int, int, int]] = {}
    for i, ngrams in enumerate(counted):
        for ngram, count in ngrams.items():
            best, owner, second = found.get(ngram, (0, i, 0))
            found[ngram] = (count, i, best) if count > best else (best, owner, max(count, second))
    return found


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(KINDS), use_stemmer=False)
