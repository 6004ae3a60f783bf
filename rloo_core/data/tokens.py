"""Token ids of the tables, beside them: made once, by the data stage, and read by every stage after it.

tokens/{table}-{split}.parquet   a list of ids a row for each text column, and which table, tokenizer and template
                                 they were made of

Ids that were made of anything else, or cannot be read, are as good as none: the texts are encoded anew.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from rloo_core.data.schema import COLUMNS, Prompt, Row, prompt_key
from rloo_core.data.tables import read_table, table_path
from rloo_core.tokenization import encode_completion, encode_prompt, tokenizer_digest

Ids = NDArray[np.int32]
MADE_OF = b"made_of"


class Encoder:
    """Ids of prompts and replies; every text is encoded once.

    Args:
        tokenizer: The run's tokenizer.
        chat_template: Whether text prompts are a user's turn.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: bool) -> None:
        self.tokenizer, self.chat_template = tokenizer, chat_template
        self._prompts: dict[str, Ids] = {}
        self._replies: dict[str, Ids] = {}

    def prompt(self, prompt: Prompt) -> Ids:
        """Ids of a prompt, ready for a completion to follow."""
        key = prompt_key(prompt)
        if key not in self._prompts:
            self._prompts[key] = np.array(encode_prompt(self.tokenizer, prompt, self.chat_template), np.int32)
        return self._prompts[key]

    def reply(self, reply: str | None) -> Ids:
        """Ids of a reply and its EOS; none where there is no reply, as prompts may be without a reference."""
        if reply is None:
            return np.array([], np.int32)
        if reply not in self._replies:
            self._replies[reply] = np.array(encode_completion(self.tokenizer, reply), np.int32)
        return self._replies[reply]

    def column(self, name: str, rows: Sequence[Row]) -> list[Ids]:
        """Ids of one text column of a table."""
        encode: Callable[[Any], Ids] = self.prompt if name == "prompt" else self.reply
        return [encode(row.get(name)) for row in rows]


def write_tokens(data_dir: Path, table: str, split: str, rows: Sequence[Row], encoder: Encoder) -> None:
    """Write the ids of a table that lies in `data_dir` already; nothing for a tokenizer that has no digest."""
    made_of = _made_of(data_dir, table, split, encoder.tokenizer, encoder.chat_template)
    if made_of is None:
        return
    ids = {name: pa.array(encoder.column(name, rows), pa.list_(pa.int32())) for name in COLUMNS[table]}
    path = _path(data_dir, table, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = pa.table(ids).replace_schema_metadata({MADE_OF: made_of})
    pq.write_table(kept, path, compression="zstd", write_page_checksum=True)


def token_ids(
    data_dir: Path,
    table: str,
    split: str,
    columns: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    chat_template: bool = False,
    limit: int | None = None,
) -> list[list[list[int]]]:
    """Ids of some columns of a table: as the data stage left them, or encoded now.

    Args:
        data_dir: Output directory of the data stage.
        table: See `read_table`.
        split: See `read_table`.
        columns: Names of text columns: prompt, reference, completion, chosen, rejected.
        tokenizer: Whose ids are wanted.
        chat_template: Whether text prompts are a user's turn of its template.
        limit: Most rows that are wanted.

    Returns:
        For each column the ids of its rows; empty where a prompt has no reference.
    """
    kept = _kept(data_dir, table, split, columns, _made_of(data_dir, table, split, tokenizer, chat_template))
    if kept is not None:
        return [_lists(kept[name].combine_chunks().slice(0, limit)) for name in columns]
    encoder, rows = Encoder(tokenizer, chat_template), read_table(data_dir, table, split)[:limit]
    return [[ids.tolist() for ids in encoder.column(name, rows)] for name in columns]


def _kept(data_dir: Path, table: str, split: str, columns: Sequence[str], made_of: bytes | None) -> pa.Table | None:
    """What the data stage left, if it is of the same table, tokenizer and template."""
    try:
        path = _path(data_dir, table, split)
        found = pq.read_table(path, columns=list(columns), page_checksum_verification=True)
    except (OSError, ValueError, KeyError, pa.ArrowException):  # missing, damaged
        return None
    same = made_of is not None and (found.schema.metadata or {}).get(MADE_OF) == made_of
    return found if same and found.column_names == list(columns) else None


def _made_of(
    data_dir: Path, table: str, split: str, tokenizer: PreTrainedTokenizerBase, chat_template: bool
) -> bytes | None:
    """What a table's ids depend on; None where a tokenizer does not say what it does."""
    path, digest = table_path(data_dir, table, split), tokenizer_digest(tokenizer)
    if digest is None or not path.is_file():
        return None
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return json.dumps({"table": content, "tokenizer": digest, "chat_template": chat_template}, sort_keys=True).encode()


def _path(data_dir: Path, table: str, split: str) -> Path:
    return data_dir / "tokens" / f"{table}-{split}.parquet"


def _lists(column: pa.ListArray) -> list[list[int]]:
    """Row by row; through one flat list, since Arrow makes an object of each number otherwise."""
    flat = column.flatten().to_numpy(zero_copy_only=False).tolist()
    ends = accumulate(column.value_lengths().to_pylist(), initial=0)
    return [flat[start:end] for start, end in pairwise(ends)]
