"""Length filters: what does not fit the model's context is dropped and counted, never cut."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rloo_core.data.schema import REPLIES, DroppedRows, Prompt, Record, prompt_key
from rloo_core.tokenization import encode_completion, encode_prompt, eos_token_ids


class LengthFilter:
    """Measures rows with the tokenisation that training will use; every text once."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_prompt_tokens: int,
        max_total_tokens: int,
        chat_template: bool = False,
    ) -> None:
        """
        Args:
            tokenizer: The run's tokenizer.
            max_prompt_tokens: Longest prompt that is kept.
            max_total_tokens: Longest prompt + reply + EOS that is kept.
            chat_template: Whether text prompts are a user's turn.
        """
        self._tokenizer = tokenizer
        self._max_prompt_tokens = max_prompt_tokens
        self._max_total_tokens = max_total_tokens
        self._chat_template = chat_template
        self._eos = eos_token_ids(tokenizer)[0]
        self._prompt_lengths: dict[str, int] = {}
        self._reply_lengths: dict[str, int | None] = {}

    def keep(self, records: Sequence[Record], dropped: DroppedRows) -> list[Record]:
        """The rows that fit; the others are counted by reason."""
        kept = []
        for record in records:
            reason = self.reason(record)
            if reason is None:
                kept.append(record)
            else:
                dropped.add(record.table, record.split, reason, record.where)
        return kept

    def reason(self, record: Record) -> str | None:
        """Why a row does not fit, or None."""
        prompt_length = self._prompt_length(record.row["prompt"])
        if prompt_length > self._max_prompt_tokens:
            return "prompt longer than data.max_prompt_tokens"
        lengths = [self._reply_length(record.row[column]) for column in REPLIES[record.table]]
        if None in lengths:
            return "text goes on behind an end-of-text token"
        if prompt_length + max((length for length in lengths if length), default=0) > self._max_total_tokens:
            return "prompt + reply + EOS longer than data.max_total_tokens"
        return None

    def _prompt_length(self, prompt: Prompt) -> int:
        key = prompt_key(prompt)
        if key not in self._prompt_lengths:
            self._prompt_lengths[key] = len(encode_prompt(self._tokenizer, prompt, self._chat_template))
        return self._prompt_lengths[key]

    def _reply_length(self, reply: str) -> int | None:
        """Tokens of the reply with its EOS, or None if an EOS stands within it."""
        if reply not in self._reply_lengths:
            ids = encode_completion(self._tokenizer, reply)
            self._reply_lengths[reply] = None if self._eos in ids[:-1] else len(ids)
        return self._reply_lengths[reply]
