"""Stages that do next to nothing, in the shape of real ones: a data table, models that are a config, an evaluation."""

import hashlib
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from rloo_core.observer import Observer
from rloo_core.settings import Settings

NAMES = {
    "DataStageSettings": "data",
    "SftStageSettings": "sft",
    "RewardModelStageSettings": "reward_model",
    "PolicyStageSettings": "policy",
    "EvaluationStageSettings": "evaluation",
}
STEPS = 6
calls: list[str] = []
trouble: dict[str, BaseException] = {}
first: dict[str, int] = {}  # steps that a stage found done


def run(settings: Settings, inputs: Mapping[str, Path], out: Path, observer: Observer) -> dict[str, float]:
    """Write an output that depends on settings and inputs; go on from `checkpoints/step` if it is there."""
    name = NAMES[type(settings).__name__]
    calls.append(name)
    assert all((directory / "result.json").exists() for directory in inputs.values())
    first[name] = _checkpoint(out)
    for step in range(first[name] + 1, STEPS + 1):
        observer.metrics(step, {"loss/mean": 1 / step})
        observer.progress(step, STEPS, "[red]note[/red]")
        if step == STEPS // 2:
            (out / "checkpoints").mkdir(exist_ok=True)
            (out / "checkpoints" / "step").write_text(str(step - 1))
            _stumble(name)
    observer.message(f"{name} [bold]says[/bold]")
    observer.table("samples", [{"prompt": "a", "completion": name}])
    _write(name, settings, inputs, out)
    return _summary(name)


def _checkpoint(out: Path) -> int:
    file = out / "checkpoints" / "step"
    return int(file.read_text()) if file.exists() else 0


def _stumble(name: str) -> None:
    if os.environ.get("FAKE_KILL") == name:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("FAKE_TERM") == name:
        os.kill(os.getpid(), signal.SIGTERM)
    if name in trouble:
        raise trouble[name]


def _write(name: str, settings: Settings, inputs: Mapping[str, Path], out: Path) -> None:
    content = settings.model_dump_json() + "".join(
        (directory / "result.json").read_text() for _, directory in sorted(inputs.items())
    )
    digest = hashlib.sha256(content.encode()).hexdigest()
    (out / "result.json").write_text(json.dumps({"made": digest}))
    if name == "data":
        tables = {f"{kind}-{split}": {"rows": 3, "sha256": digest}
                  for kind in ("prompts", "demonstrations", "preferences")
                  for split in ("train", "validation", "test")}  # fmt: skip
        (out / "dataset.json").write_text(json.dumps({"source": "synthetic", "tables": tables}))
    elif name != "evaluation":
        (out / "model").mkdir(exist_ok=True)
        head = "ForSequenceClassification" if name == "reward_model" else "ForCausalLM"
        (out / "model" / "config.json").write_text(
            json.dumps({"architectures": [f"GPTNeoX{head}"], "dtype": "float32"})
        )
        (out / "model" / "model.safetensors").write_bytes(digest.encode())


def _summary(name: str) -> dict[str, float]:
    if name != "evaluation":
        return {f"{name}/loss": 0.5}
    who = {"sft": 0.25, "policy": 0.5}
    rates = {f"evaluation/{model}/sampled/win_rate": rate for model, rate in who.items()}
    return rates | {"evaluation/difference/sampled/win_rate": 0.25}
