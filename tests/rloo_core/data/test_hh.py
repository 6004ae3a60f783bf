import pytest

from rloo_core.data.hh import parse, split_transcript, transcript_messages
from rloo_core.data.prepare import prepare_tables
from rloo_core.data.schema import DroppedRows, SourceRow, UnusableRowError
from rloo_core.data.sources import read_records
from rloo_core.data.tokens import Encoder
from tests.rloo_core.data.recorder import SHARED, Recorder, data_settings, word_tokenizer, write_lines

HH = SHARED / "hh"
PROMPT = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Why?\n\nAssistant:"


def pair(chosen, rejected):
    return SourceRow({"chosen": chosen, "rejected": rejected}, "file:1")


def test_prompt_ends_with_the_last_turn_of_the_assistant():
    record = parse(pair(f"{PROMPT} So.", f"{PROMPT} No."), "preferences")
    assert record.row == {"prompt": PROMPT, "chosen": " So.", "rejected": " No."}


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        (f"{PROMPT} a", f"{PROMPT} a", "chosen equals rejected"),
        (f"{PROMPT} a", f"{PROMPT} ", "empty reply"),
        (f"{PROMPT}", f"{PROMPT} b", "empty reply"),
        (f"{PROMPT} a", "\n\nHuman: Hi\n\nAssistant: b", "prompt differs between chosen and rejected"),
        (f"{PROMPT} a", None, "rejected is missing"),
        (f"{PROMPT} a", 7, "rejected is not text"),
        ("hello", f"{PROMPT} b", "chosen has no turn of the assistant"),
    ],
)
def test_unusable_pairs_say_why(chosen, rejected, reason):
    with pytest.raises(UnusableRowError, match=reason):
        parse(pair(chosen, rejected), "preferences")


def test_a_transcript_becomes_turns():
    assert transcript_messages(PROMPT) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Why?"},
    ]


def test_turns_of_one_speaker_in_a_row_become_one():
    assert transcript_messages("\n\nHuman: a\n\nHuman: b\n\nAssistant:") == [{"role": "user", "content": "a\n\nb"}]


@pytest.mark.parametrize(
    "prompt",
    ["intro\n\nHuman: a\n\nAssistant:", "\n\nAssistant:", "\n\nHuman:\n\nAssistant:", PROMPT + " x" + PROMPT[-12:]],
)
def test_transcripts_that_are_no_chat(prompt):
    with pytest.raises(UnusableRowError):
        transcript_messages(prompt)


def test_demonstrations_are_the_preferred_replies_and_so_are_references(tmp_path):
    write_lines(tmp_path / "pairs.jsonl.gz", [{"chosen": f"{PROMPT} good", "rejected": f"{PROMPT} bad"}])
    observer = Recorder()
    tables, dropped = prepare_tables(data_settings(tmp_path, "hh"), Encoder(word_tokenizer(), False), observer)
    assert tables["demonstrations"]["train"] == [{"prompt": PROMPT, "completion": " good"}]
    assert tables["prompts"]["train"] == [{"prompt": PROMPT, "reference": " good"}]
    assert dropped.total == 0
    assert any("chosen replies" in message for message in observer.messages)


def test_messages_for_chat_models(tmp_path):
    write_lines(tmp_path / "pairs.jsonl", [{"chosen": f"{PROMPT} good", "rejected": f"{PROMPT} bad"}])
    template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    settings = data_settings(tmp_path, "hh", format="messages")
    tables, _ = prepare_tables(settings, Encoder(word_tokenizer(template), True), Recorder())
    assert tables["preferences"]["train"] == [
        {"prompt": transcript_messages(PROMPT), "chosen": "good", "rejected": "bad"}
    ]
    assert tables["prompts"]["train"][0]["reference"] == "good"


@pytest.mark.skipif(not HH.exists(), reason="shared/data/hh is not here")
class TestTheRealFiles:
    def test_their_defects_are_counted(self):
        dropped = DroppedRows()
        records = read_records(data_settings(HH, "hh"), dropped, Recorder())
        assert {reason: tables["preferences"] for reason, tables in dropped.by_reason().items()} == {
            "prompt differs between chosen and rejected": 14,
            "chosen equals rejected": 2,
            "empty reply": 8,
        }
        assert len(records) == 2354 + 2312 - 24

    def test_nothing_is_lost_in_between(self):
        for record in read_records(data_settings(HH, "hh"), DroppedRows(), Recorder())[:500]:
            prompt, chosen = record.row["prompt"], record.row["chosen"]
            assert split_transcript(prompt + chosen) == (prompt, chosen)

    def test_with_nothing_but_test_files_rows_are_split_anew(self):
        settings = data_settings(HH, "hh", validation_fraction=0.1, test_fraction=0.1, max_prompt_tokens=60)
        observer = Recorder()
        tables, _ = prepare_tables(settings, Encoder(word_tokenizer(), False), observer)
        sizes = {split: len(rows) for split, rows in tables["preferences"].items()}
        total = sum(sizes.values())
        assert abs(sizes["test"] / total - 0.1) < 0.03
        assert abs(sizes["validation"] / total - 0.1) < 0.03
        assert any("none train: split anew" in message for message in observer.messages)
