"""The weights a training had when a held-out metric was best: kept while it goes on, taken back at its end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from rloo_core.files import fsync
from rloo_core.processes import Processes

FILE = "best.safetensors"  # among the checkpoints, so it is not part of what the stage leaves


class BestWeights:
    """Keeps the trained weights of the best evaluation so far, the earliest of equals.

    A killed run meets the same values again, in the same order, and ends with the same weights as one that was not.

    Args:
        accelerator: Gathers the weights.
        model: The prepared model.
        directory: Where the stage keeps its checkpoints.
        metric: Name of a metric of the evaluations, e.g. validation/proxy_reward; the highest value is best, or the
            lowest with a minus before the name.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, directory: Path, metric: str) -> None:
        self.accelerator, self.model, self.path = accelerator, model, directory / FILE
        self.name, self.sign = metric.removeprefix("-"), -1.0 if metric.startswith("-") else 1.0

    def offer(self, step: int, values: Mapping[str, float]) -> None:
        """Keep the weights as they are now, if an evaluation after `step` steps is the best so far.

        Raises:
            ValueError: If the evaluations do not measure the metric.
        """
        if self.name not in values:
            measured = ", ".join(sorted(name for name in values if name.startswith("validation/"))) or "none"
            raise ValueError(
                f"keep_best={self.name} is not measured on this stage's validation rows; there are: {measured}"
            )
        value = self.sign * values[self.name]
        best = self._read()
        better = best is None or value > best[1]
        if Processes(self.accelerator).agree(better):
            self._write(step, value)

    def restore(self) -> int:
        """Give the model its best weights.

        Returns:
            After how many steps it had them.
        """
        best = self._read()
        assert best is not None, "an evaluation comes before the end"
        plain: Any = self.accelerator.unwrap_model(self.model)
        plain.load_state_dict(load_file(self.path), strict=False)
        return best[0]

    def forget(self) -> None:
        """Drop what an earlier run left, because this one starts anew."""
        if self.accelerator.is_main_process:
            self.path.unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()

    def _write(self, step: int, value: float) -> None:
        state: dict[str, Any] = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            plain: Any = self.accelerator.unwrap_model(self.model)
            trained = [name for name, parameter in plain.named_parameters() if parameter.requires_grad]
            kept = {name: state[name].detach().cpu().contiguous() for name in trained}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".tmp")
            save_file(kept, temporary, {"step": str(step), "value": repr(value)})
            fsync(temporary)
            temporary.replace(self.path)
            fsync(self.path.parent)
        self.accelerator.wait_for_everyone()

    def _read(self) -> tuple[int, float] | None:
        if not self.path.exists():
            return None
        with safe_open(self.path, "pt") as file:
            about = file.metadata()
        return int(about["step"]), float(about["value"])
