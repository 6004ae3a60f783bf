"""Ids that the data stage left are read where they are those of the table, tokenizer and template; never else."""

import pytest

from rloo_core.data import tokens
from rloo_core.data.schema import COLUMNS, SPLITS, TABLES
from rloo_core.data.tables import read_table, table_path, write_table
from rloo_core.data.tokens import token_ids
from rloo_core.stages import common, data
from rloo_core.tokenization import encode_completion, encode_prompt, load_tokenizer, tokenizer_digest
from tests.rloo_core.data.recorder import SHARED, Recorder, data_settings, word_tokenizer, write_lines
from tests.rloo_core.stages.small import COMPUTE
from tests.rloo_core.stages.test_data_stage import stage_settings
from tests.rloo_core.test_tokenization import CHATML, byte_tokenizer

PAIRS = [{"prompt": f"question {i} ?", "chosen": "good" + " so" * i, "rejected": "bad"} for i in range(40)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A data stage's output, with letters as tokens, a BOS and a template."""
    root = tmp_path_factory.mktemp("tokens")
    byte_tokenizer(template=CHATML).save_pretrained(root / "letters")
    settings = data_settings(write_lines(root / "pairs.jsonl", PAIRS), test_fraction=0.3, validation_fraction=0.2)
    return made(root / "out", stage_settings(settings, path=str(root / "letters")))


def made(out, settings):
    out.mkdir()
    data.run(settings, {}, out, Recorder())
    return out


def copy_of(place, tmp_path):
    """The same output in a directory of its own, to be damaged."""
    for path in place.rglob("*"):
        if path.is_file():
            target = tmp_path / path.relative_to(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path


def by_definition(rows, name, tokenizer, chat_template=False):
    if name == "prompt":
        return [encode_prompt(tokenizer, row[name], chat_template) for row in rows]
    return [encode_completion(tokenizer, row[name]) if row[name] is not None else [] for row in rows]


@pytest.fixture
def encoded(monkeypatch):
    """The texts that are encoded while a test runs."""
    found = []

    def watch(name):
        original = getattr(tokens, name)
        monkeypatch.setattr(tokens, name, lambda t, text, *rest: (found.append(text), original(t, text, *rest))[1])

    watch("encode_prompt")
    watch("encode_completion")
    return found


def test_later_stages_encode_nothing(place, encoded):
    tokenizer = load_tokenizer(str(place / "tokenizer"))
    for table in TABLES:
        for split in SPLITS:
            names, rows = COLUMNS[table], read_table(place, table, split)
            assert rows
            found = token_ids(place, table, split, names, tokenizer)
            assert found == [by_definition(rows, name, tokenizer) for name in names]
            assert token_ids(place, table, split, names[:1], tokenizer, limit=2) == [found[0][:2]]
    given = common.given_completions(
        {"data": place}, "preferences", "train", ["chosen", "rejected"], tokenizer, False, COMPUTE
    )
    assert [len(group) for group in given.completions] == [2] * len(read_table(place, "preferences", "train"))
    assert len(common.prompts_of({"data": place}, "test", tokenizer, False, 3).ids) == 3
    assert encoded == []


def test_the_data_stage_encodes_each_text_once(tmp_path, encoded):
    word_tokenizer().save_pretrained(tmp_path / "words")
    settings = data_settings(write_lines(tmp_path / "pairs.jsonl", PAIRS), test_fraction=0.3)
    made(tmp_path / "out", stage_settings(settings, path=str(tmp_path / "words")))
    texts = {row[name] for row in PAIRS for name in ("prompt", "chosen", "rejected")}
    assert sorted(encoded) == sorted(texts)  # of three tables, each with a filter before it


def test_a_tokenizer_with_other_rules_is_asked_itself(place, encoded):
    for other in (word_tokenizer(), byte_tokenizer(template=CHATML, ends=True)):
        found = token_ids(place, "preferences", "test", ["chosen"], other)
        assert found == [by_definition(read_table(place, "preferences", "test"), "chosen", other)]
        assert encoded
        encoded.clear()


def test_another_template_or_none(place, encoded):
    tokenizer = load_tokenizer(str(place / "tokenizer"))
    rows = read_table(place, "prompts", "test")
    found = token_ids(place, "prompts", "test", ["prompt"], tokenizer, chat_template=True)
    assert found == [by_definition(rows, "prompt", tokenizer, chat_template=True)]
    assert len(encoded) == len(rows)
    tokenizer.chat_template = CHATML + " "
    token_ids(place, "prompts", "test", ["prompt"], tokenizer)
    assert len(encoded) == 2 * len(rows)


def test_another_table(place, encoded, tmp_path):
    """Whoever exchanges a table of an output gets the ids of the new one, in as many rows."""
    place = copy_of(place, tmp_path)
    tokenizer = load_tokenizer(str(place / "tokenizer"))
    rows = [row | {"reference": "other words"} for row in read_table(place, "prompts", "test")]
    write_table(table_path(place, "prompts", "test"), "prompts", rows)
    found = token_ids(place, "prompts", "test", ["reference"], tokenizer)
    assert found == [by_definition(rows, "reference", tokenizer)]


@pytest.mark.parametrize("keep", [None, 0, 100, -20])
def test_a_damaged_file_is_as_good_as_none(place, encoded, tmp_path, keep):
    place = copy_of(place, tmp_path)
    tokenizer = load_tokenizer(str(place / "tokenizer"))
    file = place / "tokens" / "prompts-train.parquet"
    whole, rows = file.read_bytes(), read_table(place, "prompts", "train")
    file.unlink() if keep is None else file.write_bytes(whole[:keep])
    assert token_ids(place, "prompts", "train", ["prompt"], tokenizer) == [by_definition(rows, "prompt", tokenizer)]
    assert len(encoded) == len(rows)


def test_no_byte_that_changes_is_believed(place, encoded, tmp_path):
    place = copy_of(place, tmp_path)
    tokenizer = load_tokenizer(str(place / "tokenizer"))
    file = place / "tokens" / "prompts-train.parquet"
    whole, expected = file.read_bytes(), [by_definition(read_table(place, "prompts", "train"), "prompt", tokenizer)]
    for place_of_damage in range(4, len(whole), 29):
        changed = bytearray(whole)
        changed[place_of_damage] ^= 0x10
        file.write_bytes(changed)
        assert token_ids(place, "prompts", "train", ["prompt"], tokenizer) == expected, place_of_damage
    assert encoded  # some of them were noticed


@pytest.mark.parametrize("source", ["synthetic", "hh"])
def test_ids_outlive_saving_and_loading_of_real_tokenizers(tmp_path, encoded, source):
    stories = SHARED / "models/stories260K/hf"
    if source == "hh" and not stories.exists():
        pytest.skip("shared/data is not here")
    own = data_settings(SHARED / "hh/helpful-base-test.jsonl.gz", "hh", max_rows=20, test_fraction=0.2)
    settings = stage_settings(own, path=str(stories)) if source == "hh" else stage_settings(data_settings(None, source))
    out = made(tmp_path / "out", settings)
    encoded.clear()
    token_ids(out, "prompts", "train", ["prompt"], load_tokenizer(str(out / "tokenizer")))
    assert encoded == []


def test_a_tokenizer_that_does_not_tell_its_rules_has_no_digest():
    class Slow:
        backend_tokenizer = None

    assert tokenizer_digest(Slow()) is None
    assert tokenizer_digest(word_tokenizer()) == tokenizer_digest(word_tokenizer())
