"""Length filters: what does not fit the model's context is dropped and counted, never cut."""

from collections.abc import Sequence

from rloo_core.data.schema import REPLIES, DroppedRows, Record
from rloo_core.data.tokens import Encoder
from rloo_core.tokenization import eos_token_ids


class LengthFilter:
    """Measures rows with the tokenisation that training will use."""

    def __init__(self, encoder: Encoder, max_prompt_tokens: int, max_total_tokens: int) -> None:
        """
        Args:
            encoder: Of the run's tokenizer.
            max_prompt_tokens: Longest prompt that is kept.
            max_total_tokens: Longest prompt + reply + EOS that is kept.
        """
        self._encoder = encoder
        self._max_prompt_tokens = max_prompt_tokens
        self._max_total_tokens = max_total_tokens
        self._eos = eos_token_ids(encoder.tokenizer)[0]

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
        prompt_length = len(self._encoder.prompt(record.row["prompt"]))
        if prompt_length > self._max_prompt_tokens:
            return "prompt longer than data.max_prompt_tokens"
        lengths = [self._reply_length(record.row[column]) for column in REPLIES[record.table]]
        if None in lengths:
            return "text goes on behind an end-of-text token"
        if prompt_length + max((length for length in lengths if length), default=0) > self._max_total_tokens:
            return "prompt + reply + EOS longer than data.max_total_tokens"
        return None

    def _reply_length(self, reply: str) -> int | None:
        """Tokens of the reply with its EOS, or None if an EOS stands within it."""
        ids = self._encoder.reply(reply)
        return None if self._eos in ids[:-1] else len(ids)
