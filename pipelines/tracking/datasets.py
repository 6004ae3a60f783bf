"""The tables of the data stage as MLflow dataset inputs, on the runs that read them."""

import json
from pathlib import Path

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
    description = data / "dataset.json"
    if not description.exists():
        return []
    content = json.loads(description.read_text(encoding="utf-8"))
    tables = {name: about for name, about in content["tables"].items() if name.startswith(READS.get(stage, ()))}
    return [_input(name, about, content["source"], stored) for name, about in tables.items()]


def _input(name: str, about: dict[str, object], source: str, stored: Path) -> DatasetInput:
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
