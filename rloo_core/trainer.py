"""The one training loop. SFT, reward model, DPO and the online methods differ in the step they take."""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler

from rloo_core.checkpoints import load_newest_checkpoint, save_checkpoint
from rloo_core.observer import Observer
from rloo_core.random_streams import seed_for
from rloo_core.settings import ComputeSettings, TrainingSettings

Update = Sequence[Callable[[], Tensor]]
"""One optimiser step: the losses of its micro-batches. They are already divided by the step's denominators, so they add
up to the step's loss however the step is split."""


HISTORY = "metrics.jsonl"


class Method(ABC):
    """What a training stage does at a step."""

    @abstractmethod
    def updates(self, step: int) -> Iterable[Update]:
        """The optimiser steps of one step, from 0. Depends on the step, the weights and `state`, on nothing else."""

    @abstractmethod
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the step just taken."""

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Metrics on held-out data after `step` steps; called every `eval_every` steps and at the end."""
        return {}

    def state(self) -> dict[str, object]:
        """What the method remembers between steps, as JSON values."""
        return {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over what `state` gave."""
        assert not state, "a method that remembers something must take it back"


@dataclass
class TrainingLoop:
    """Steps, learning rate, gradient clipping, evaluation, checkpoints and resuming.

    Args:
        accelerator: Decides device, precision and number of processes.
        model: The plain model; its parameters that require gradients are trained.
        settings: Optimiser, schedule, intervals.
        steps: Steps to take in all.
        directory: The stage's directory; checkpoints go to `checkpoints/` below it, metrics to `metrics.jsonl`.
        observer: Receives metrics and progress.
    """

    accelerator: Accelerator
    model: nn.Module
    settings: TrainingSettings
    steps: int
    directory: Path
    observer: Observer

    def __post_init__(self) -> None:
        optimizer = make_optimizer(self.model, self.settings)
        self.optimizer: Optimizer
        self.model, self.optimizer = self.accelerator.prepare(self.model, optimizer)
        warmup = round(self.settings.warmup_fraction * self.steps)
        # `optimizer`, not the prepared one: Accelerate's would step the schedule once a process
        self.schedule: LRScheduler = get_scheduler(self.settings.schedule, optimizer, warmup, self.steps)

    def run(self, method: Method) -> None:
        """Train from the newest checkpoint, or from the start, to the last step."""
        first = self._resume(method)
        if first == 0 and self.settings.eval_every > 0:
            self._report(0, method.evaluate(0))
        last_saved = time.monotonic()
        for step in range(first, self.steps):
            started = time.monotonic()
            torch.manual_seed(seed_for(self.settings.seed, "training step", step))
            grad_norm = 0.0
            rate = float(self.schedule.get_last_lr()[0])
            for update in method.updates(step):
                grad_norm = self._take(update)
            self.schedule.step()
            done = step + 1
            values: dict[str, float] = {**method.metrics(), "grad/norm": grad_norm, "learning_rate": rate}
            seconds = time.monotonic() - started
            if self._is_due(done, self.settings.eval_every) or done == self.steps:
                values |= method.evaluate(done)
            self._report(done, values, {"time/step_seconds": seconds})
            self.observer.progress(done, self.steps, _note(values))
            minutes = (time.monotonic() - last_saved) / 60
            if done < self.steps and (
                self._is_due(done, self.settings.checkpoint_every) or minutes >= self.settings.checkpoint_minutes
            ):
                self._save(method, done)
                last_saved = time.monotonic()

    def history(self) -> list[dict[str, float]]:
        """Metrics of every step so far, in order, with the step as `step`; the same for a resumed run."""
        path = self.directory / HISTORY
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _report(self, step: int, values: Mapping[str, float], timing: Mapping[str, float] | None = None) -> None:
        """Tell the observer, and keep what does not depend on the machine's speed."""
        self._refuse_divergence(values)
        with (self.directory / HISTORY).open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        self.observer.metrics(step, {**values, **(timing or {})})

    def _forget_after(self, step: int) -> None:
        """Drop what a killed run recorded after its last checkpoint (a half-written line, too)."""
        path = self.directory / HISTORY
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            path.write_text("".join(line + "\n" for line in lines if json.loads(line)["step"] <= step))

    def _take(self, update: Update) -> float:
        """Backward over the micro-batches, clip, step. Returns the gradient norm before clipping."""
        for index, loss in enumerate(update):
            synchronise = index == len(update) - 1
            with _maybe(self.accelerator.no_sync, self.model, skip=synchronise):
                # Accelerate's wrappers average gradients over processes; the step's loss is their sum
                self.accelerator.backward(loss() * self.accelerator.num_processes)
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm) or 0.0)
        self._refuse_divergence({"grad/norm": norm})
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def _refuse_divergence(self, values: Mapping[str, float]) -> None:
        """Stop before a checkpoint or a model is written from numbers that are none."""
        wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        if wrong:
            raise ValueError(
                f"training has diverged: {', '.join(wrong[:3])}. Lower the stage's learning_rate (now "
                f"{self.settings.learning_rate:g}) or max_grad_norm (now {self.settings.max_grad_norm:g}), and look at "
                f"its data and rewards; nothing of this stage is kept but its checkpoints"
            )

    def _resume(self, method: Method) -> int:
        found = load_newest_checkpoint(self.accelerator, self.directory / "checkpoints")
        if found is None:
            (self.directory / HISTORY).unlink(missing_ok=True)
            return 0
        step, state = found
        self._forget_after(step)
        self.schedule.load_state_dict(state["schedule"])  # type: ignore[arg-type]
        method.restore(state["method"])  # type: ignore[arg-type]
        self.observer.message(f"resumed from step {step} of {self.steps}")
        return step

    def _save(self, method: Method, step: int) -> None:
        state: dict[str, object] = {"schedule": self.schedule.state_dict(), "method": method.state()}
        directory = self.directory / "checkpoints"
        save_checkpoint(self.accelerator, directory, step, state, self.settings.keep_checkpoints)

    @staticmethod
    def _is_due(done: int, every: int) -> bool:
        return every > 0 and done % every == 0


def make_accelerator(compute: ComputeSettings) -> Accelerator:
    """The Accelerator of a stage: device and mixed precision (autocast over float32 weights).

    Raises:
        ValueError: If there is no such device, or there are several processes.
    """
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("compute.device=cuda, but torch finds no CUDA device here; set compute.device=auto or cpu")
    accelerator = Accelerator(
        cpu=compute.device == "cpu", mixed_precision="bf16" if compute.precision == "bfloat16" else "no"
    )
    if accelerator.num_processes > 1:
        raise ValueError(
            f"training on several processes is not there yet; started with {accelerator.num_processes}. Run one process"
        )
    return accelerator


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> AdamW:
    """AdamW over the parameters that train; weight decay spares vectors (biases, norms)."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=settings.learning_rate, betas=(0.9, settings.adam_beta2), eps=settings.adam_epsilon)


def _maybe(context: Callable[[Any], Any], argument: Any, *, skip: bool) -> Any:
    return nullcontext() if skip else context(argument)


def _note(values: Mapping[str, float]) -> str:
    """The few numbers worth seeing while it runs."""
    shown = ("loss", "validation/loss", "accuracy", "reward/mean", "kl/mean", "completion/length_mean")
    return "  ".join(f"{name} {values[name]:.3f}" for name in shown if name in values)
