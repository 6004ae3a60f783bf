import json

import pytest

from rloo_core.data.prepare import prepare_tables
from rloo_core.data.schema import DroppedRows, SourceRow, UnusableRowError
from rloo_core.data.sources import read_records
from rloo_core.data.tldr import parse, table_of
from rloo_core.data.tokens import Encoder
from tests.rloo_core.data.recorder import SHARED, Recorder, data_settings, word_tokenizer, write_lines

INFO = {"subreddit": "dogs", "title": "Boots", "post": "My dog wears boots."}
PROMPT = "SUBREDDIT: r/dogs\n\nTITLE: Boots\n\nPOST: My dog wears boots.\n\nTL;DR:"
SUMMARIES = [{"text": " dog in boots"}, {"text": "a cat"}]


def parsed(values):
    table = table_of(values.keys())
    return table, parse(SourceRow(values, "file:1"), table)


@pytest.mark.parametrize(
    ("choice", "chosen", "rejected"), [(0, " dog in boots", " a cat"), (1, " a cat", " dog in boots")]
)
def test_a_comparison(choice, chosen, rejected):
    table, record = parsed({"info": INFO, "summaries": SUMMARIES, "choice": choice, "split": "valid1"})
    assert (table, record.split) == ("preferences", "validation")
    assert record.row == {"prompt": PROMPT, "chosen": chosen, "rejected": rejected}


def test_a_post_with_its_summary():
    table, record = parsed(INFO | {"summary": "dog in boots"})
    assert (table, record.row) == ("demonstrations", {"prompt": PROMPT, "completion": " dog in boots"})


@pytest.mark.parametrize("column", ["completion", "label"])
def test_rows_that_are_ready(column):
    table, record = parsed({"prompt": PROMPT, column: " dog in boots"})
    assert (table, record.row) == ("demonstrations", {"prompt": PROMPT, "completion": " dog in boots"})


def test_copies_that_put_the_ending_before_the_summaries():
    row = {"prompt": PROMPT.removesuffix("\n\nTL;DR:"), "chosen": "TL;DR: boots", "rejected": "TL;DR: cat"}
    assert parsed(row)[1].row == {"prompt": PROMPT, "chosen": " boots", "rejected": " cat"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"info": {"site": "cnn", "title": "Boots", "article": "…"}}, "not a Reddit post"),
        ({"info": INFO | {"title": None}}, "title is missing"),
        ({"info": None}, "info is missing"),
        ({"info": INFO | {"post": " "}}, "empty prompt"),
        ({"summaries": SUMMARIES[:1]}, "not a comparison of two summaries"),
        ({"choice": 2}, "choice is neither 0 nor 1"),
        ({"summaries": [{"text": "a"}, {"text": " a"}]}, "chosen equals rejected"),
        ({"summaries": [{"text": "a"}, {"text": " "}]}, "empty reply"),
        ({"summaries": [{"text": "a"}, {}]}, "is missing"),
    ],
)
def test_unusable_rows_say_why(change, reason):
    with pytest.raises(UnusableRowError, match=reason):
        parsed({"info": INFO, "summaries": SUMMARIES, "choice": 0} | change)


def test_news_articles_are_counted(tmp_path):
    news = {"info": {"site": "cnn", "title": "t", "article": "a"}, "summaries": SUMMARIES, "choice": 0}
    post = {"info": INFO, "summaries": SUMMARIES, "choice": 0}
    write_lines(tmp_path / "batch9.json", [news, post, news])  # published as JSON lines under this name
    observer = Recorder()
    tables, _ = prepare_tables(data_settings(tmp_path, "tldr"), Encoder(word_tokenizer(), False), observer)
    assert len(tables["preferences"]["train"]) == 1
    assert observer.dropped() == {("preferences", "not a Reddit post (a news article)"): 2}


def test_the_published_schema(tmp_path):
    examples = SHARED / "tldr/format_examples.json"
    if not examples.exists():
        pytest.skip("shared/data/tldr is not here")
    comparison, rating = json.loads(examples.read_text())
    write_lines(tmp_path / "comparisons.jsonl", [comparison])
    write_lines(tmp_path / "ratings.jsonl", [rating])
    dropped = DroppedRows()
    (record,) = read_records(data_settings(tmp_path, "tldr"), dropped, Recorder())
    assert record.row["prompt"].startswith("SUBREDDIT: r/legaladvice\n\nTITLE: Anybody with knowledge")
    assert record.row["prompt"].endswith("\n\nTL;DR:")
    assert record.row["chosen"].startswith(" we suspect other party")
    assert record.split == "train"
    assert dropped.by_reason() == {"not a Reddit post (a news article)": {"ratings": 1}}
