"""Overlap of texts: ROUGE against references, self-BLEU among samples; both as their libraries define them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

KINDS = ("rouge1", "rouge2", "rougeL")


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

    metric = BLEU(effective_order=True)
    scores = [
        metric.sentence_score(text, [*completions[:i], *completions[i + 1 :]]).score
        for i, text in enumerate(completions)
    ]
    return float(sum(scores) / len(scores) / 100)


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(KINDS), use_stemmer=False)
