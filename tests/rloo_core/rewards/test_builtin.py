"""Built in rewards by hand."""

from importlib.util import find_spec

import pytest

from rloo_core.rewards.builtin import length_band, regular_expression, repetition, sentiment


def test_length_band_counts_words_outside():
    texts = ["one two", "one, two; three's", "a b c d e f", " ".join("x" * 40)]
    assert length_band(texts, low=3, high=4, slope=0.1) == pytest.approx([-0.1, 0.0, -0.2, -1.0])
    with pytest.raises(ValueError, match="low <= high; got low=5, high=4"):
        length_band(texts, low=5, high=4)


def test_repetition_is_the_part_of_ngrams_that_came_before():
    texts = ["a b c d", "a b a b", "a a a a a", "a", ""]
    # bigrams: 3 of 3 new; ab, ba, ab: 1 of 3 again; aa x 4: 3 of 4 again
    assert repetition(texts, n=2) == pytest.approx([0.0, -1 / 3, -3 / 4, 0.0, 0.0])


def test_regular_expression_hits_or_misses():
    assert regular_expression(["yes.", "no"], pattern=r"^yes\.$", hit=2.0, miss=-1.0) == [2.0, -1.0]


@pytest.mark.skipif(find_spec("vaderSentiment") is None, reason="pip install 'rloo[sentiment]' brings the lexicon")
def test_sentiment_tells_good_from_bad():
    good, bad, neither = sentiment(["I love this wonderful day", "this is horrible and sad", "the table has legs"])
    assert good > 0.5 > 0 > -0.5 > bad
    assert neither == 0.0
