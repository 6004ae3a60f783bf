import string

import pytest
from transformers import AutoTokenizer

from rloo_core.data.synthetic import build_tables, word_tokenizer
from rloo_core.data.synthetic.frames import FRAMES
from rloo_core.data.synthetic.posts import ASK_SENTENCES, DISTRACTOR_SENTENCES, FEELING_SENTENCES
from rloo_core.data.synthetic.summaries import CLOSERS, OPENERS
from rloo_core.data.synthetic.vocabulary import vocabulary
from rloo_core.settings import SyntheticSettings


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer()


@pytest.fixture(scope="module")
def texts():
    """Completions, prompts, and the two joined, of 3,000 posts."""
    settings = SyntheticSettings(
        prompts=1, demonstrations=2000, preferences=1000, validation=1, test=1, label_temperature=0.5
    )
    tables = build_tables(settings, seed=3)
    rows = [(row["prompt"], row["completion"]) for row in tables["demonstrations"]["train"]]
    rows += [(row["prompt"], row[side]) for row in tables["preferences"]["train"] for side in ("chosen", "rejected")]
    return rows


def test_special_tokens_differ(tokenizer):
    assert [tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token] == ["<|pad|>", "<|eos|>", "<|unk|>"]
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert len(tokenizer) == len(vocabulary()) == len(set(vocabulary()))
    assert 400 <= len(tokenizer) <= 700


def test_decode_undoes_encode(tokenizer, texts):
    for pair in texts:
        for text in pair:
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text
            assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_prompt_and_completion_apart_are_the_text_together(tokenizer, texts):
    for prompt, completion in texts[:500]:
        apart = tokenizer(prompt)["input_ids"] + tokenizer(completion)["input_ids"]
        assert apart == tokenizer(prompt + completion)["input_ids"]


def test_every_template_is_covered(tokenizer):
    templates = [*FEELING_SENTENCES, *ASK_SENTENCES, *OPENERS, *CLOSERS]
    templates += [sentence for pool in DISTRACTOR_SENTENCES.values() for sentence in pool]
    for frame in FRAMES.values():
        templates += [*frame.titles, *frame.stories, *frame.asides, *frame.colours, *frame.asks, *frame.objects]
    for template in templates:
        slots = {slot for _, slot, _, _ in string.Formatter().parse(template) if slot}
        text = " " + template.strip().format(**dict.fromkeys(slots, "my"))
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"], text


def test_texts_are_short_enough_for_a_small_context(tokenizer, texts):
    demonstrations = texts[:2000]
    assert max(len(tokenizer(prompt)["input_ids"]) for prompt, _ in demonstrations) <= 90
    assert max(len(tokenizer(completion)["input_ids"]) for _, completion in demonstrations) < 32  # EOS is the 32nd


def test_words_from_elsewhere_are_unknown_not_an_error(tokenizer):
    assert tokenizer.decode(tokenizer(" my xylograph.")["input_ids"]) == " my<|unk|>."


def test_saved_and_loaded_it_is_the_same(tokenizer, texts, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.pad_token, loaded.eos_token, loaded.unk_token) == ("<|pad|>", "<|eos|>", "<|unk|>")
    for pair in texts[:200]:
        for text in pair:
            ids = loaded(text)["input_ids"]
            assert ids == tokenizer(text)["input_ids"]
            assert loaded.decode(ids) == text
