"""The closed vocabulary of the embedded task, and a word-level tokenizer for it.

A token is a word with the space in front of it (" walter"), a punctuation mark, or a header of the post. So the
tokens of a text, put together, are the text; and a completion, which starts with a space, has the same tokens alone as
after its prompt.
"""

import functools
import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rloo_core.data.synthetic.frames import FRAMES
from rloo_core.data.synthetic.lexicon import FEELINGS, NAMES, RELATIONS, TIMES
from rloo_core.data.synthetic.posts import ASK_SENTENCES, DISTRACTOR_SENTENCES, FEELING_SENTENCES
from rloo_core.data.synthetic.summaries import CLOSERS, OPENERS

PAD, EOS, UNK = "<|pad|>", "<|eos|>", "<|unk|>"
HEADERS = ("SUBREDDIT:", "\n\nTITLE:", "\n\nPOST:", "\n\nTL;DR:")
MARKS = (".", ",", "?", ":")
SUMMARY_WORDS = "my someone i am because should feel and wonder whether to in on she he her him his"
_PATTERN = r"SUBREDDIT:|\n\n(?:TITLE|POST|TL;DR):| ?[^\s.,?:]+|[.,?:]|\s"


@functools.cache
def vocabulary() -> tuple[str, ...]:
    """Every token, special ones first, in an order that depends on the grammar alone."""
    templates = [*FEELING_SENTENCES, *ASK_SENTENCES, *OPENERS, *CLOSERS, SUMMARY_WORDS]
    templates += [sentence for pool in DISTRACTOR_SENTENCES.values() for sentence in pool]
    templates += [*NAMES, *RELATIONS, *TIMES, *FEELINGS]
    for frame in FRAMES.values():
        templates += [f"r/{frame.subreddit}", frame.event, frame.event_vague, *frame.objects, *frame.asks]
        templates += [*frame.titles, *frame.stories, *frame.asides, *frame.colours]
    words = {word for text in templates for word in _words(text)}
    return (PAD, EOS, UNK, *HEADERS, *MARKS, *(f" {word}" for word in sorted(words)))


def word_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer: one token a word; `decode(encode(text)) == text` for every text that the grammar writes.

    Words from elsewhere become `<|unk|>`. Nothing is added in front or at the end.
    """
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary())}, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        clean_up_tokenization_spaces=False,
    )


def _words(template: str) -> list[str]:
    """The words of a template, without slots and punctuation marks."""
    literal = "".join(text + " " * bool(slot) for text, slot, _, _ in string.Formatter().parse(template))
    for mark in MARKS:
        literal = literal.replace(mark, " ")
    return literal.split()
