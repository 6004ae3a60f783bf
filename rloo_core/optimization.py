"""Optimiser, schedule and gradient checkpointing of a training stage."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, get_scheduler

from rloo_core.settings import TrainingSettings


@dataclass(frozen=True)
class Part:
    """A model that trains, with its own peak learning rate; its gradient is clipped apart from the other parts'."""

    name: str
    model: nn.Module
    learning_rate: float


def make_optimizer(parts: Iterable[Part], settings: TrainingSettings) -> AdamW:
    """AdamW over the parameters that train; weight decay spares vectors (biases, norms)."""
    groups: list[dict[str, Any]] = []
    for part in parts:
        parameters = [p for p in part.model.parameters() if p.requires_grad]
        matrices, vectors = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
        groups.append({"params": matrices, "lr": part.learning_rate, "weight_decay": settings.weight_decay})
        groups.append({"params": vectors, "lr": part.learning_rate, "weight_decay": 0.0})
    return AdamW(
        groups, lr=settings.learning_rate, betas=(0.9, settings.adam_beta2), eps=settings.adam_epsilon, fused=True
    )


def make_schedule(optimizer: Optimizer, settings: TrainingSettings, updates: int) -> LRScheduler:
    """The learning rate over `updates` optimiser steps, after a warm-up over a fraction of them."""
    warmup = round(settings.warmup_fraction * updates)
    name = "constant_with_warmup" if settings.schedule == "constant" else settings.schedule  # their "constant" has none
    schedule: LRScheduler = get_scheduler(name, optimizer, warmup, updates)
    return schedule


def checkpoint_gradients(model: PreTrainedModel) -> None:
    """Recompute activations in the backward pass; takes effect where `training_mode` holds."""
    model.activation_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()


def recomputes_activations(model: nn.Module) -> bool:
    """Whether a model's activations are computed again in the backward pass."""
    return any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


@contextmanager
def training_mode(models: Iterable[nn.Module]) -> Iterator[None]:
    """Train mode while an update is computed, for models that checkpoint gradients: transformers asks for it.

    Every dropout is zero (`models.disable_dropout`), so the numbers are those of evaluation mode. Other models stay in
    evaluation mode throughout.
    """
    checkpointing = [model for model in models if recomputes_activations(model)]
    for model in checkpointing:
        model.train()
    try:
        yield
    finally:
        for model in checkpointing:
            model.eval()
