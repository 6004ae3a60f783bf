"""The data stage: any source in, three tables and the run's tokenizer out.

tables/{table}-{split}.parquet   prompts, demonstrations, preferences; train, validation, test
tokens/{table}-{split}.parquet   their token ids
tokenizer/                       with its chat template, and a pad token that is not EOS
dropped_rows.json                what was left out, by table, split and reason
dataset.json                     rows and SHA-256 of every table
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rloo_core.data.prepare import Tables, prepare_tables
from rloo_core.data.schema import DroppedRows, Prompt
from rloo_core.data.tables import table_path, write_table
from rloo_core.data.tokens import Encoder, write_tokens
from rloo_core.observer import Observer
from rloo_core.settings import DataStageSettings, ModelSettings
from rloo_core.tokenization import ensure_pad_token, installed_package_directory, load_tokenizer

EXAMPLES = 3


def run(settings: DataStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer) -> dict[str, float]:
    """Prepare the data; nothing is written before everything could be read.

    Args:
        settings: Source, filters, and the model whose tokenizer measures them.
        inputs: None are used.
        out: Existing directory for the outputs named above.
        observer: Receives the counts of dropped rows and a few examples.

    Returns:
        "{table}/{split}_rows" for every table and split, and "dropped/total".

    Raises:
        ValueError: If the source, the tokenizer or a needed table is missing.
    """
    tokenizer = stage_tokenizer(settings)
    grew = ensure_pad_token(tokenizer)
    if grew:
        observer.message(
            f"data: the pad token {tokenizer.pad_token} was added to the tokenizer ({len(tokenizer)} tokens)"
        )
    encoder = Encoder(tokenizer, settings.model.chat_template)
    tables, dropped = prepare_tables(settings.data, encoder, observer)
    observer.table("examples", _examples(tables))
    _write(out, settings.data.source, tables, dropped, encoder)
    summary = {
        f"{table}/{split}_rows": float(len(rows)) for table, parts in tables.items() for split, rows in parts.items()
    }
    return summary | {"dropped/total": float(dropped.total)}


def stage_tokenizer(settings: DataStageSettings) -> PreTrainedTokenizerBase:
    """The tokenizer of the model the run starts from; of the embedded task where the model is made from nothing.

    Raises:
        ValueError: If there is none.
    """
    model = settings.model
    if model.gguf_package is not None:
        directory = installed_package_directory(model.gguf_package)
        return load_tokenizer(directory, gguf_file=_gguf_file(directory, model))
    if model.path is not None:
        return load_tokenizer(model.path, model.revision, model.gguf_file)
    if settings.data.source != "synthetic":
        raise ValueError(
            f"model.path=null trains a model from nothing, which has a vocabulary for data.source=synthetic only; for "
            f"data.source={settings.data.source} set model.path to a model's directory or hub id."
        )
    from rloo_core.data.synthetic import word_tokenizer

    return word_tokenizer()


def _gguf_file(directory: str, model: ModelSettings) -> str:
    """The GGUF file of an installed package: the one named, or the only one."""
    files = sorted(path.name for path in Path(directory).glob("*.gguf"))
    if model.gguf_file in files:
        return str(model.gguf_file)
    if model.gguf_file is None and len(files) == 1:
        return files[0]
    raise ValueError(
        f"model.gguf_file={model.gguf_file} should name one of the GGUF files of the package {model.gguf_package}; it "
        f"holds {', '.join(files) or 'none'}."
    )


def _write(out: Path, source: str, tables: Tables, dropped: DroppedRows, encoder: Encoder) -> None:
    described: dict[str, dict[str, object]] = {}
    for table, parts in tables.items():
        for split, rows in parts.items():
            path = table_path(out, table, split)
            write_table(path, table, rows)
            write_tokens(out, table, split, rows, encoder)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            described[f"{table}-{split}"] = {"rows": len(rows), "sha256": digest}
    encoder.tokenizer.save_pretrained(out / "tokenizer")
    _write_json(out / "dropped_rows.json", dropped.rows())
    _write_json(out / "dataset.json", {"source": source, "tables": described})


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _examples(tables: Tables) -> list[dict[str, object]]:
    """The first rows of each table that has any, all columns as text."""
    return [
        {
            "table": table,
            "prompt": _shown(row["prompt"]),
            "reply": row.get("completion") or row.get("chosen") or row.get("reference"),
            "rejected": row.get("rejected"),
        }
        for table, parts in tables.items()
        for row in parts["train"][:EXAMPLES]
    ]


def _shown(prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
