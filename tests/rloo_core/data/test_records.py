"""Users' own rows, in the shapes that TRL documents."""

import pytest

from rloo_core.data.records import parse, table_of
from rloo_core.data.schema import SourceRow, UnusableRowError

USER = {"role": "user", "content": "Why?"}
ANSWER = {"role": "assistant", "content": "So."}
OTHER = {"role": "assistant", "content": "No."}


def parsed(values):
    table = table_of(values.keys())
    return table, parse(SourceRow(values, "file:1"), table).row


@pytest.mark.parametrize(
    ("values", "table", "row"),
    [
        ({"prompt": "a", "id": 7}, "prompts", {"prompt": "a", "reference": None, "id": 7}),
        ({"prompt": "a", "reference": "b"}, "prompts", {"prompt": "a", "reference": "b"}),
        ({"prompt": "a", "reference": ""}, "prompts", {"prompt": "a", "reference": None}),
        ({"prompt": [USER]}, "prompts", {"prompt": [USER], "reference": None}),
        ({"prompt": "a", "completion": "b"}, "demonstrations", {"prompt": "a", "completion": "b"}),
        ({"prompt": [USER], "completion": [ANSWER]}, "demonstrations", {"prompt": [USER], "completion": "So."}),
        ({"messages": [USER, ANSWER]}, "demonstrations", {"prompt": [USER], "completion": "So."}),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            "preferences",
            {"prompt": "a", "chosen": "b", "rejected": "c"},
        ),
        (
            {"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]},
            "preferences",
            {"prompt": [USER], "chosen": "So.", "rejected": "No."},
        ),
        (
            {"chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
            "preferences",
            {"prompt": [USER], "chosen": "So.", "rejected": "No."},
        ),
        (  # UltraFeedback: the prompt is there twice
            {"prompt": "Why?", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]},
            "preferences",
            {"prompt": [USER], "chosen": "So.", "rejected": "No."},
        ),
        (  # TRL's own example of an implicit prompt
            {"chosen": "The sky is blue.", "rejected": "The sky is green."},
            "preferences",
            {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        ),
        (
            {"chosen": "\n\nHuman: a\n\nAssistant: b c", "rejected": "\n\nHuman: a\n\nAssistant: b d"},
            "preferences",
            {"prompt": "\n\nHuman: a\n\nAssistant:", "chosen": " b c", "rejected": " b d"},
        ),
    ],
)
def test_shapes(values, table, row):
    assert parsed(values) == (table, row)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"prompt": None}, "prompt is missing"),
        ({"prompt": 7}, "prompt is neither text nor chat messages"),
        ({"prompt": [5, 6]}, "prompt is neither text nor chat messages"),
        ({"prompt": "  "}, "empty prompt"),
        ({"prompt": [{"role": "user", "content": ""}]}, "empty prompt"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "prompt has a message that is more than text"),
        ({"prompt": "a", "completion": None}, "completion is missing"),
        ({"prompt": "a", "completion": "\n"}, "empty reply"),
        ({"prompt": "a", "completion": [USER]}, "completion is not one assistant message"),
        ({"prompt": "a", "completion": "b", "label": False}, "labelled as undesirable"),
        ({"messages": [USER]}, "messages does not end with the assistant's answer"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen equals rejected"),
        ({"prompt": "a", "chosen": "b", "rejected": 1}, "rejected is neither text nor chat messages"),
        ({"chosen": "b", "rejected": None}, "prompt is missing"),
        ({"chosen": "abc", "rejected": "xyz"}, "begin differently"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, USER, OTHER]}, "prompt differs between chosen and rejected"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]}, "chosen equals rejected"),
    ],
)
def test_unusable_rows_say_why(values, reason):
    with pytest.raises(UnusableRowError, match=reason):
        parsed(values)


def test_columns_that_are_none_of_these():
    assert table_of({"question", "answer"}) is None
