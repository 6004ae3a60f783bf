import pytest

from rloo_core.data.filters import LengthFilter
from rloo_core.data.schema import DroppedRows, Record
from rloo_core.data.tokens import Encoder
from tests.rloo_core.data.recorder import word_tokenizer

LONG_PROMPT = "prompt longer than data.max_prompt_tokens"
LONG_TOTAL = "prompt + reply + EOS longer than data.max_total_tokens"


def words(count):
    return " ".join(["w"] * count)


@pytest.mark.parametrize(
    ("table", "row", "reason"),
    [
        ("prompts", {"prompt": words(4)}, None),
        ("prompts", {"prompt": words(5)}, LONG_PROMPT),
        ("prompts", {"prompt": words(4), "reference": words(99)}, None),
        ("demonstrations", {"prompt": words(4), "completion": words(5)}, None),  # 4 + 5 + EOS = 10
        ("demonstrations", {"prompt": words(4), "completion": words(6)}, LONG_TOTAL),
        ("demonstrations", {"prompt": words(4), "completion": words(5) + " </s>"}, None),
        ("demonstrations", {"prompt": words(1), "completion": "a </s> b"}, "text goes on behind an end-of-text token"),
        ("preferences", {"prompt": words(4), "chosen": words(5), "rejected": words(5)}, None),
        ("preferences", {"prompt": words(4), "chosen": words(6), "rejected": words(1)}, LONG_TOTAL),
        ("preferences", {"prompt": words(4), "chosen": words(1), "rejected": words(6)}, LONG_TOTAL),
    ],
)
def test_exact_limits(table, row, reason):
    dropped = DroppedRows()
    lengths = LengthFilter(Encoder(word_tokenizer(), False), max_prompt_tokens=4, max_total_tokens=10)
    kept = lengths.keep([Record(table, row, "file:1", "train")], dropped)
    assert len(kept) == (reason is None)
    assert dropped.by_reason() == ({reason: {table: 1}} if reason else {})


def test_the_template_counts():
    template = "{% for m in messages %}a b c {{ m['content'] }}{% endfor %}"
    record = Record("prompts", {"prompt": words(2)}, "file:1", "train")
    assert LengthFilter(Encoder(word_tokenizer(template), True), 4, 10).reason(record) == LONG_PROMPT
    assert LengthFilter(Encoder(word_tokenizer(template), True), 5, 10).reason(record) is None
