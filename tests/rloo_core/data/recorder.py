"""An observer that remembers, a tokenizer of one token a word, and settings for tests of the data path."""

import gzip
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rloo_core.observer import SilentObserver
from rloo_core.settings import DataSettings, SyntheticSettings

SHARED = Path(__file__).parents[4] / "shared/data"


class Recorder(SilentObserver):
    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, object]]] = {}
        self.messages: list[str] = []

    def table(self, name, rows):
        self.tables[name] = [dict(row) for row in rows]

    def message(self, text):
        self.messages.append(text)

    def dropped(self) -> dict[tuple[str, str], int]:
        """Rows by (table, reason), over all splits."""
        counts: dict[tuple[str, str], int] = {}
        for row in self.tables["dropped_rows"]:
            key = (row["table"], row["reason"])
            counts[key] = counts.get(key, 0) + row["rows"]
        return counts


def word_tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a word (all unknown but EOS); no BOS."""
    backend = Tokenizer(WordLevel({"<unk>": 0, "</s>": 1, "<pad>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<unk>", "</s>", "<pad>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    return tokenizer


def data_settings(path: Path | str | None = None, source: str = "tables", **changes: Any) -> DataSettings:
    values = {
        "source": source,
        "path": None if path is None else str(path),
        "format": "text",
        "max_prompt_tokens": 10_000,
        "max_total_tokens": 10_000,
        "max_rows": None,
        "validation_fraction": 0.0,
        "test_fraction": 0.0,
        "seed": 0,
        "synthetic": SyntheticSettings(
            prompts=6, demonstrations=6, preferences=6, validation=3, test=3, label_temperature=1.0
        ),
    }
    return DataSettings(**(values | changes))


def write_lines(path: Path, rows: list[Any]) -> Path:
    """JSON lines (text is written as it is), gzipped where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
