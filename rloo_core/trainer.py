"""The one training loop. SFT, reward model, DPO and the online methods differ in the step they take."""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn

from rloo_core.attention import refuse_flex_gradients
from rloo_core.best_weights import BestWeights
from rloo_core.checkpoints import load_newest_checkpoint, save_checkpoint
from rloo_core.cpu_memory import kept_memory
from rloo_core.observer import Observer
from rloo_core.optimization import Part, make_optimizer, make_schedule, training_mode
from rloo_core.processes import Processes
from rloo_core.random_streams import seed_for
from rloo_core.settings import ComputeSettings, TrainingSettings

Update = Sequence[Callable[[], Tensor]]
"""One optimiser step: the losses of this process's micro-batches. They are already divided by the step's denominators
over all processes, so they add up to the step's loss however the step is split. A process may have none."""

HISTORY = "metrics.jsonl"


class Method(ABC):
    """What a training stage does at a step."""

    tokens: int = 0
    """Completion tokens of the step just taken, over all processes; for the speed only."""

    @abstractmethod
    def updates(self, step: int) -> Iterable[Update]:
        """The optimiser steps of one step, from 0. Depends on the step, the weights and `state`, on nothing else."""

    @abstractmethod
    def idle(self) -> Tensor:
        """A loss of exactly zero through every model in training: what a process without work takes part with."""

    @abstractmethod
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the step just taken, the same in every process."""

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
        settings: Optimiser, schedule, intervals, and which weights the model is to end with (`take_best`).
        steps: Steps to take in all.
        directory: The stage's directory; checkpoints go to `checkpoints/` below it, metrics to `metrics.jsonl`.
        observer: Receives metrics and progress.
        updates_per_step: Optimiser steps that the method makes of a step; the learning rate moves with each.
        critic: A second model that trains along, or None.
    """

    accelerator: Accelerator
    model: nn.Module
    settings: TrainingSettings
    steps: int
    directory: Path
    observer: Observer
    updates_per_step: int = 1
    critic: Part | None = None
    best: BestWeights | None = field(init=False, default=None)
    processes: Processes = field(init=False)

    def __post_init__(self) -> None:
        self.processes = Processes(self.accelerator)
        parts = [Part("policy", self.model, self.settings.learning_rate), *([self.critic] if self.critic else [])]
        for part in parts:
            refuse_flex_gradients(part.model, self.accelerator.device)
        optimizer = make_optimizer(parts, self.settings)
        *models, self.optimizer = self.accelerator.prepare(*(part.model for part in parts), optimizer)
        self.model = models[0]
        if self.settings.keep_best is not None:
            checkpoints = self.directory / "checkpoints"
            self.best = BestWeights(self.accelerator, self.model, checkpoints, self.settings.keep_best)
        self.parts = [Part(p.name, model, p.learning_rate) for p, model in zip(parts, models, strict=True)]
        # `optimizer`, not the prepared one: Accelerate's would step the schedule once a process
        self.schedule = make_schedule(optimizer, self.settings, self.steps * self.updates_per_step)

    @kept_memory()
    def run(self, method: Method) -> None:
        """Train from the newest checkpoint, or from the start, to the last step."""
        first = self._resume(method)
        if first == 0 and self.settings.eval_every > 0:
            start = method.evaluate(0)
            if start:
                self._report(0, start)
            self._offer(0, start)
        last_saved = time.monotonic()
        for step in range(first, self.steps):
            started = time.monotonic()
            torch.manual_seed(seed_for(self.settings.seed, "training step", step))
            rate = float(self.schedule.get_last_lr()[0])
            norms = [self._take(update, method) for update in method.updates(step)]
            done = step + 1
            values: dict[str, float] = {**method.metrics(), **_means(norms), "learning_rate": rate}
            seconds = time.monotonic() - started
            evaluated = self._is_due(done, self.settings.eval_every) or done == self.steps
            if evaluated:
                values |= method.evaluate(done)
            timing = {"time/step_seconds": seconds, "time/tokens_per_second": method.tokens / seconds}
            self._report(done, values, timing)
            if evaluated:
                self._offer(done, values)
            self.observer.progress(done, self.steps, _note(values))
            minutes = (time.monotonic() - last_saved) / 60
            late = self.processes.agree(minutes >= self.settings.checkpoint_minutes)
            if done < self.steps and (self._is_due(done, self.settings.checkpoint_every) or late):
                self._save(method, done)
                last_saved = time.monotonic()

    def take_best(self) -> dict[str, float]:
        """Give the model the weights it is to end with, the best or the last ones; returns that step's metrics."""
        if self.best is None:
            return dict(self.history()[-1])
        step = self.best.restore()
        self.observer.message(f"the weights are those after step {step}, the best by {self.settings.keep_best}")
        found = next((row for row in self.history() if row["step"] == step), {})
        return {**found, "selected/step": float(step)}

    def _offer(self, step: int, values: Mapping[str, float]) -> None:
        if self.best is not None:
            self.best.offer(step, values)

    def history(self) -> list[dict[str, float]]:
        """Metrics of every step so far, in order, with the step as `step`; the same for a resumed run."""
        path = self.directory / HISTORY
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _report(self, step: int, values: Mapping[str, float], timing: Mapping[str, float] | None = None) -> None:
        """Tell the observer, and keep what does not depend on the machine's speed."""
        self._refuse_divergence(values)
        if not self.accelerator.is_main_process:
            return
        with (self.directory / HISTORY).open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        self.observer.metrics(step, {**values, **(timing or {})})

    def _forget_after(self, step: int) -> None:
        """Drop what a killed run recorded after its last checkpoint (a half-written line, too)."""
        path = self.directory / HISTORY
        if path.exists() and self.accelerator.is_main_process:
            lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
            path.write_text("".join(line + "\n" for line in lines if json.loads(line)["step"] <= step))

    def _take(self, update: Update, method: Method) -> dict[str, float]:
        """Backward over the micro-batches, clip, step. Returns the gradient norm of each part before clipping."""
        with training_mode(part.model for part in self.parts):
            self._backward(update, method)
        norms = {
            ("grad/norm" if part.name == "policy" else f"{part.name}/grad_norm"): float(
                self.accelerator.clip_grad_norm_(part.model.parameters(), self.settings.max_grad_norm) or 0.0
            )
            for part in self.parts
        }
        self._refuse_divergence(norms)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return norms

    def _backward(self, update: Update, method: Method) -> None:
        """Every process makes as many passes as the busiest one, so that all meet at the same gradients."""
        passes = max(self.processes.gather([len(update)]), default=0)
        losses = [*update, *[method.idle] * (passes - len(update))]
        for index, loss in enumerate(losses):
            with ExitStack() as stack:
                if index < len(losses) - 1:
                    for part in self.parts:
                        stack.enter_context(self.accelerator.no_sync(part.model))
                # Accelerate's wrappers average gradients over processes; the step's loss is their sum
                self.accelerator.backward(loss() * self.accelerator.num_processes)

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
            if self.accelerator.is_main_process:
                (self.directory / HISTORY).unlink(missing_ok=True)
            if self.best is not None:
                self.best.forget()
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

    Started by `accelerate launch`, it knows the other processes.

    Raises:
        ValueError: If there is no such device.
    """
    check_device(compute)
    # buffers are constants here (rotary frequencies); sent about at each pass, they would need equal numbers of passes
    wrapper = DistributedDataParallelKwargs(broadcast_buffers=False)
    # told that it is the CPU's turn, and not left to find no device: it would then not see the other processes
    return Accelerator(
        cpu=compute.device == "cpu" or not torch.cuda.is_available(),
        mixed_precision="bf16" if compute.precision == "bfloat16" else "no",
        kwargs_handlers=[wrapper],
    )


def check_device(compute: ComputeSettings) -> None:
    """Raises ValueError if there is no such device."""
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("compute.device=cuda, but torch finds no CUDA device here; set compute.device=auto or cpu")


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each value over an uninterrupted list of updates."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]} if rows else {}


def _note(values: Mapping[str, float]) -> str:
    """The few numbers worth seeing while it runs."""
    shown = ("loss", "validation/loss", "accuracy", "reward/mean", "kl/mean", "completion/length_mean")
    return "  ".join(f"{name} {values[name]:.3f}" for name in shown if name in values)
