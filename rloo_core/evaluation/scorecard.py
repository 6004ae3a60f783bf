"""Everything that is said of one policy's completions, as named numbers."""

from collections.abc import Sequence

from rloo_core.evaluation.assessment import Assessment, means
from rloo_core.evaluation.diversity import distinct, repetition
from rloo_core.evaluation.overlap import mean_rouge, self_bleu
from rloo_core.evaluation.preferences import distribution, rank_correlation

SELF_BLEU_TEXTS = 64  # its value rises with their number, and its cost with the square


def first_texts(assessment: Assessment, count: int) -> list[str]:
    """The texts of each prompt's first completions, prompt by prompt."""
    return [text for group in assessment.texts for text in group[:count]]


def scorecard(
    assessment: Assessment, count: int, words: int, references: Sequence[str] | None = None
) -> dict[str, float]:
    """Measures of each prompt's first completions.

    Args:
        assessment: The completions and their measures.
        count: How many completions a prompt.
        words: The equal length at which diversity is compared, see `diversity.equal_length`.
        references: One a prompt; without them there is no ROUGE.

    Returns:
        proxy_reward, gold_reward, kl, kl_k3, length, finished   means over completions
        proxy_reward_variance, …_p05 … _p95                      likewise of the gold reward
        proxy_gold_correlation                                   Spearman's, where gold is known
        distinct_1, distinct_2, …_at_equal_length, repetition_4, self_bleu, rouge1, rouge2, rougeL
    """
    measures = assessment.first(count)
    found = means(measures)
    for name in ("proxy_reward", "gold_reward"):
        if name in measures:
            found |= {f"{name}_{end}": value for end, value in distribution(measures[name]).items()}
    if "gold_reward" in measures:
        correlation = rank_correlation(measures["proxy_reward"], measures["gold_reward"])
        found |= {} if correlation is None else {"proxy_gold_correlation": correlation}
    texts = first_texts(assessment, count)
    found |= text_measures(texts, words)
    if references is not None:
        found |= mean_rouge(texts, [reference for reference in references for _ in range(count)])
    return found


def text_measures(texts: Sequence[str], words: int) -> dict[str, float]:
    """Diversity and repetition; measures that need longer texts, or more of them, are absent."""
    found = {
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        "distinct_1_at_equal_length": distinct(texts, 1, words),
        "distinct_2_at_equal_length": distinct(texts, 2, words),
        "repetition_4": repetition(texts, 4),
        "self_bleu": self_bleu(texts[:SELF_BLEU_TEXTS]) if len(texts) > 1 else None,
    }
    return {name: value for name, value in found.items() if value is not None}
