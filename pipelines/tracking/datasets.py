"""The tables of the data stage as MLflow dataset inputs, on the runs that read them."""

import json
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag

from pipelines.tracking.names import DIGEST_LENGTH

READS = {
    "data": ("prompts-", "demonstrations-", "preferences-"),
    "sft": ("demonstrations-train", "demonstrations-validation"),
    "reward_model": ("preferences-train", "preferences-validation"),
    "policy": ("prompts-train", "prompts-validation"),
    "evaluation": ("prompts-test",),
}


def dataset_inputs(stage: str, data: Path, stored: Path) -> list[DatasetInput]:
    """The tables a stage reads.

    Args:
        stage: Name of the stage.
        data: Output directory of the data stage, with `dataset.json`:
            `{"source": "synthetic", "tables": {"prompts-train": {"rows": 1000, "sha256": "…"}}}`.
        stored: Where that directory is for good.

    Returns:
        One input a table, with digest, rows and the context "train", "validation" or "test".
    """
    source = _described(data).get("source", "")
    return [_input(name, about, source, stored) for name, about in tables_read(stage, data).items()]


def tables_read(stage: str, data: Path) -> dict[str, dict[str, Any]]:
    """Rows and SHA-256 of the tables a stage reads, by name; none where the data stage left no description."""
    tables: dict[str, dict[str, Any]] = _described(data).get("tables", {})
    return {name: about for name, about in tables.items() if name.startswith(READS.get(stage, ()))}


def _described(data: Path) -> dict[str, Any]:
    description = data / "dataset.json"
    return json.loads(description.read_text(encoding="utf-8")) if description.exists() else {}


def _input(name: str, about: dict[str, Any], source: str, stored: Path) -> DatasetInput:
    sha256 = str(about["sha256"])
    dataset = Dataset(
        name=name,
        digest=sha256[:DIGEST_LENGTH],
        source_type="local",
        source=json.dumps({"uri": str(stored), "source": source, "sha256": sha256}),
        profile=json.dumps({"num_rows": about["rows"]}),
    )
    context = name.rsplit("-", 1)[-1]
    return DatasetInput(dataset, [InputTag("mlflow.data.context", context)])
