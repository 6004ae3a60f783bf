"""Measures of behaviour, against closed forms and definitions."""

import math

import numpy as np
import pytest
import torch
from rouge_score import rouge_scorer

from rloo_core.evaluation.comparisons import Comparison, compare, from_scores
from rloo_core.evaluation.diversity import distinct, equal_length, repetition
from rloo_core.evaluation.judges.base import Judgement, Question
from rloo_core.evaluation.overlap import mean_rouge, rouge, self_bleu
from rloo_core.evaluation.perplexity import perplexity, token_logprobs
from rloo_core.evaluation.preferences import (
    calibration_curve,
    calibration_error,
    distribution,
    preference_measures,
    rank_correlation,
)
from tests.rloo_core.tiny import VOCAB, tiny_llama, tiny_neox

PROMPTS = [[3, 4, 5, 6], [7], [8, 9, 10], [4]]
COMPLETIONS = [[5, 6, 1], [9], [11, 12, 13, 14, 15, 1], [3, 1]]

# Perplexity


def test_a_uniform_model_is_as_perplexed_as_its_vocabulary_is_large():
    model = tiny_neox()
    model.lm_head.weight.data.zero_()
    found = token_logprobs(model, PROMPTS, COMPLETIONS, 1000, 0)
    assert perplexity(found) == pytest.approx(VOCAB, rel=1e-6)
    assert [len(row) for row in found] == [3, 1, 6, 2]


@pytest.mark.parametrize("make", [tiny_neox, tiny_llama])
def test_neither_batches_nor_padding_change_it(make):
    model = make().double()
    whole, single = (token_logprobs(model, PROMPTS, COMPLETIONS, tokens, 0) for tokens in (1000, 1))
    for row, other in zip(whole, single, strict=True):
        assert row == pytest.approx(other, abs=1e-12)
    other_padding = token_logprobs(model, PROMPTS, COMPLETIONS, 1000, 17)
    assert perplexity(other_padding) == pytest.approx(perplexity(whole), abs=1e-12)


def test_it_is_the_definition():
    model = tiny_neox().double()
    total, count = 0.0, 0
    for prompt, ids in zip(PROMPTS, COMPLETIONS, strict=True):
        for t, token in enumerate(ids):
            logits = model(torch.tensor([[*prompt, *ids[:t]]])).logits[0, -1]
            total, count = total + logits.log_softmax(-1)[token].item(), count + 1
    assert perplexity(token_logprobs(model, PROMPTS, COMPLETIONS, 1000, 0)) == pytest.approx(math.exp(-total / count))


def test_every_token_weighs_the_same():
    # one completion of 1 token at 1/2, one of 3 tokens at 1/8 each: (2 * 8^3)^(1/4) = 5.657, not the mean of 2 and 8
    assert perplexity([[math.log(1 / 2)], [math.log(1 / 8)] * 3]) == pytest.approx((2 * 8**3) ** 0.25)
    with pytest.raises(ValueError, match="at least one token"):
        perplexity([[], []])


# Diversity


def test_distinct_by_hand():
    texts = ["a b a b", "c d e f"]  # unigrams 2/4 and 4/4; bigrams ab ba ab: 2/3, and 3/3
    assert distinct(texts, 1) == pytest.approx(0.75)
    assert distinct(texts, 2) == pytest.approx((2 / 3 + 1) / 2)
    assert distinct(["one"], 2) is None


def test_at_equal_length_a_longer_text_of_the_same_kind_is_no_less_diverse():
    short, long = "a b c d", "a b c d a b c d"
    assert distinct([long], 1) < distinct([short], 1)
    assert distinct([long], 1, words=4) == distinct([short], 1, words=4) == 1.0
    assert distinct(["a a", short], 1, words=4) == 1.0  # too short to be compared
    assert equal_length([[short] * 10, [long] * 9 + ["a b c"]]) == 4
    assert equal_length([["a"] * 10]) == 2


def test_repetition():
    assert repetition(["a b c d e"]) == 0.0
    assert repetition(["a b c d a b c d"]) == pytest.approx(1 - 4 / 5)  # abcd bcda cdab dabc abcd
    assert repetition(["a"]) is None


def test_self_bleu_of_copies_is_one_and_of_strangers_small():
    assert self_bleu(["the cat sat on the mat"] * 3) == pytest.approx(1.0)
    assert self_bleu(["a b c d e", "f g h i j", "k l m n o"]) < 0.1
    with pytest.raises(ValueError, match="two or more; got 1"):
        self_bleu(["alone"])


@pytest.mark.parametrize("count", [2, 3, 12])
def test_self_bleu_is_each_ones_bleu_against_the_others(count):
    """Word by word as sacrebleu has it, given one completion and the others as its references."""
    from sacrebleu.metrics.bleu import BLEU

    words = ["the", "cat", "sat", "on", "a", "mat", ",", "it", "'s", "warm", ".", ""]
    texts = [" ".join(words[(i * j) % len(words)] for j in range(i % 7, 14)) for i in range(1, count)] + ["the cat sat"]
    metric = BLEU(effective_order=True)
    alone = [metric.sentence_score(text, texts[:i] + texts[i + 1 :]).score / 100 for i, text in enumerate(texts)]
    assert self_bleu(texts) == pytest.approx(sum(alone) / len(alone), rel=1e-12)
    assert 0.0 < self_bleu(texts) < 1.0


def test_rouge_by_hand():
    # reference "a b c d", completion "a c d": 3 of 3 and 3 of 4 words; bigram cd; longest common subsequence acd
    found = rouge("a c d", "a b c d")
    assert found == pytest.approx({"rouge1": 6 / 7, "rouge2": 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3), "rougeL": 6 / 7})
    assert mean_rouge(["a c d", "x"], ["a b c d", "y"])["rougeL"] == pytest.approx(3 / 7)
    library = rouge_scorer.RougeScorer(["rougeL"]).score("a b c d", "d c a")["rougeL"].fmeasure
    assert rouge("d c a", "a b c d")["rougeL"] == pytest.approx(library)


# Reward models


def test_preference_measures_by_hand():
    # differences ln 3 (chance 3/4), 0 (1/2), -ln 3 (1/4); the second pair equally long
    found = preference_measures([math.log(3), 0.0, 0.0], [0.0, 0.0, math.log(3)], [(5, 2), (3, 3), (2, 6)])
    assert found["accuracy"] == pytest.approx(0.5)
    assert found["log_loss"] == pytest.approx((math.log(4 / 3) + math.log(2) + math.log(4)) / 3)
    assert found["brier"] == pytest.approx((1 / 16 + 1 / 4 + 9 / 16) / 3)
    assert found["longer_preferred"] == 1.0  # the model prefers 5 over 2, and 6 over 2
    assert found["longer_chosen"] == 0.5  # people preferred 5 over 2, and 2 over 6
    assert found["calibration_error"] == pytest.approx(1 / 3 * 0.0 + 2 / 3 * 0.25)


def test_a_model_that_says_what_it_knows_is_calibrated_and_a_bold_one_is_not():
    random = np.random.default_rng(0)
    strength = np.abs(random.normal(scale=2, size=20_000))
    right = random.random(20_000) < 1 / (1 + np.exp(-strength))
    difference = np.where(right, strength, -strength)
    assert calibration_error(difference) < 0.02
    assert calibration_error(5 * difference) > 0.1
    rows = calibration_curve(difference)
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert all(0.5 <= row["confidence"] <= 1.0 for row in rows)


def test_rank_correlation_and_distribution():
    assert rank_correlation([1, 2, 3], [1, 4, 9]) == pytest.approx(1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    found = distribution([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found == pytest.approx({"variance": 2.5, "p05": 1.2, "p25": 2.0, "p50": 3.0, "p75": 4.0, "p95": 4.8})


# Comparisons


class Prefers:
    """A judge by a rule on the two texts."""

    name = "rule"

    def __init__(self, rule):
        self.rule = rule

    def __call__(self, questions):
        return [self.rule(question.first, question.second) for question in questions]

    def usage(self):
        return {}


def pairs(count):
    return [Question(f"p{i}", "x" * (i + 1), "y" * 3, {}) for i in range(count)], list(range(count))


def test_a_judge_who_always_says_first_is_seen_through():
    found = compare(Prefers(lambda first, second: 1.0), *pairs(6)).summary()
    assert (found["win_rate"], found["first_preferred"], found["position_consistency"]) == (0.5, 1.0, 0.0)
    assert (found["ties"], found["judged"], found["unparsed"]) == (1.0, 6.0, 0.0)


def test_unreadable_verdicts_are_counted_apart():
    """No verdict where x stands first and is short: two pairs have one order only, and are not counted."""
    found = compare(Prefers(lambda a, b: None if a in ("x", "xx") else float(a[0] == "x")), *pairs(5)).summary()
    assert (found["judged"], found["unparsed"], found["win_rate"]) == (3.0, 2.0, 1.0)
    nothing = compare(Prefers(lambda a, b: None), *pairs(2))
    assert nothing.summary() == {"judged": 0.0, "unparsed": 4.0}
    assert nothing.by_length() == []


def test_known_scores_need_no_second_order():
    comparison = from_scores([1.0, 2.0, 3.0], [1.0, 3.0, 1.0], ["aa", "b", "c"], ["aa", "bb", "c"], [0, 1, 2])
    found = comparison.summary()
    assert (found["win_rate"], found["ties"], found["position_consistency"]) == pytest.approx((0.5, 1 / 3, 1.0))
    assert [b.compared for b in comparison.by_length()] == [1, 0, 2, 0, 0]


def test_completions_of_a_prompt_count_as_one_prompt():
    judgements = [Judgement(1.0, 1.0)] * 8 + [Judgement(0.0, 0.0)] * 8
    alone = Comparison(judgements, [(1, 1)] * 16, list(range(16))).summary()
    together = Comparison(judgements, [(1, 1)] * 16, [i // 4 for i in range(16)]).summary()
    assert together["win_rate_high"] - together["win_rate_low"] > alone["win_rate_high"] - alone["win_rate_low"]
