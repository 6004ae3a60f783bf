"""Model cards: what a registered model is, what it was made from, how good it is, how to load it. Markdown."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from pipelines.store import Manifest
from pipelines.tracking.datasets import tables_read

TITLES = {
    "sft": "Supervised fine-tuning: writes like the demonstrations",
    "reward_model": "Reward model: scores completions so that preferred ones score higher",
    "policy": "Policy: the SFT model, optimised against the reward",
}
EVALUATION = "## Evaluation"
CLASSES = {"reward_model": "AutoModelForSequenceClassification"}


def model_card(manifest: Manifest, parents: Mapping[str, str], data: Path | None, uri: str, copied: bool) -> str:
    """The card of a model.

    Args:
        manifest: Of the stage that made it.
        parents: Name and version of each model it was made from, by stage.
        data: Output directory of the data stage, if it is there.
        uri: What MLflow loads it by: `models:/...`.
        copied: Whether MLflow has its files.
    """
    stage = manifest.stage
    sections = [
        f"# {TITLES.get(stage, stage)}",
        f"Made by the stage `{stage}` on {manifest.created[:10]}, fingerprint `{manifest.fingerprint}`, "
        f"outputs' digest `{manifest.digest}`.",
        "## Made from",
        *_list([f"{name}: `{model}`" for name, model in parents.items()]),
        *_list(
            [
                f"`{name}`: {about['rows']} rows, SHA-256 `{about['sha256']}`"
                for name, about in (tables_read(stage, data) if data else {}).items()
            ]
        ),
        "## Results",
        *_table(("metric", "value"), [(name, f"{value:.6g}") for name, value in manifest.summary.items()]),
        "## Recipe",
        *_table(
            ("setting", "value"),
            [
                (name.removeprefix("settings/"), str(value))
                for name, value in manifest.parts.items()
                if name.startswith("settings/")
            ],
        ),
        f"Libraries: {', '.join(f'{name} {version}' for name, version in manifest.versions.items())}.",
        "## Load it",
        loading(uri, stage, copied),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def loading(uri: str, stage: str, copied: bool) -> str:
    """Python that loads the model."""
    kind = CLASSES.get(stage, "AutoModelForCausalLM")
    reward = "\n# reward = logit - model.config.reward_offset" if stage == "reward_model" else ""
    if not copied:
        return (
            "MLflow keeps a pointer only (`tracking.log_models=false`); `store.path` says where its files are:\n"
            f"\n```python\nmodel = transformers.{kind}.from_pretrained(STORE_PATH){reward}\n```"
        )
    return f"""```python
import mlflow, transformers

pipeline = mlflow.transformers.load_model("{uri}")

directory = mlflow.artifacts.download_artifacts("{uri}") + "/model"  # or plainly
model = transformers.{kind}.from_pretrained(directory)
tokenizer = transformers.AutoTokenizer.from_pretrained(directory){reward}
```"""


def evaluation_section(manifest: Manifest, basis: str) -> str:
    """What the evaluation stage found about a policy."""
    rows = [(name, f"{value:.4g}") for name, value in sorted(manifest.summary.items())]
    about = f"Test prompts, sampling and judge `{basis}`; compare only what has the same."
    lines = [EVALUATION, about, *_table(("metric", "value"), rows)]
    return "\n\n".join(lines) + "\n"


def _list(lines: Iterable[str]) -> list[str]:
    text = "\n".join(f"- {line}" for line in lines)
    return [text] if text else []


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    cells = [tuple(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return ["\n".join([f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells)])]
