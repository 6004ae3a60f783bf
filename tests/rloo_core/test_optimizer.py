"""Clipping, AdamW and the checkpoint clock, by hand: a loss that is linear in the weights has a gradient we choose."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rloo_core import trainer
from rloo_core.observer import SilentObserver
from rloo_core.trainer import Method, TrainingLoop
from tests.rloo_core.test_checkpoints_and_resume import COMPUTE, settings

RATE, DECAY, BETA2, EPSILON = 0.1, 0.5, 0.9, 0.01
# gradients of a step: of a matrix [1, 2] and of a vector [1]. Norms 3 and 0.3
GRADIENTS = [([[1.0, -2.0]], [2.0]), ([[0.2, 0.1]], [-0.2])]
MATRIX, VECTOR = [[4.0, -6.0]], [5.0]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


class Linear(Method):
    """Loss = sum of gradient * weight, in two micro-batches of half of it."""

    def __init__(self, model):
        self.model = model

    def updates(self, step):
        wanted = [tensor(values) for values in GRADIENTS[step]]
        yield [lambda: sum((g * p).sum() for g, p in zip(wanted, self.model.parameters(), strict=True)) / 2] * 2

    def idle(self):
        raise AssertionError("one process is never idle")

    def metrics(self):
        return {}


def train(directory, steps, **changes):
    """The weights after some steps, and the metrics of each."""
    model = nn.Module()
    model.matrix, model.vector = nn.Parameter(tensor(MATRIX)), nn.Parameter(tensor(VECTOR))
    values = {
        "learning_rate": RATE, "schedule": "constant", "warmup_fraction": 0.0, "weight_decay": DECAY,
        "adam_beta2": BETA2, "adam_epsilon": EPSILON, "max_grad_norm": 1.5, "eval_every": 0, "checkpoint_every": 0,
    }  # fmt: skip
    accelerator = trainer.make_accelerator(COMPUTE)
    loop = TrainingLoop(accelerator, model, settings(**(values | changes)), steps, directory, SilentObserver())
    loop.run(Linear(loop.model))
    return model.matrix.detach(), model.vector.detach(), loop.history()


def adamw(weight, gradients, decay):
    """Loshchilov & Hutter 2019, algorithm 2, as it is written."""
    m = v = torch.zeros_like(weight)
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, BETA2 * v + (1 - BETA2) * g**2
        m_hat, v_hat = m / (1 - 0.9**t), v / (1 - BETA2**t)
        weight = weight - RATE * decay * weight - RATE * m_hat / (v_hat.sqrt() + EPSILON)
    return weight


@pytest.mark.parametrize("steps", [1, 2])
def test_adamw_with_a_clipped_gradient_and_decay_for_matrices_only(tmp_path, steps):
    """The first gradient has norm 3 and is halved to 1.5, the second has norm 0.3 and stays."""
    scales = [0.5, 1.0]
    matrix, vector = (
        [scale * tensor(gradient[i]) for scale, gradient in zip(scales, GRADIENTS[:steps], strict=False)]
        for i in range(2)
    )
    found = train(tmp_path, steps)
    assert_close(found[0], adamw(tensor(MATRIX), matrix, DECAY), rtol=1e-6, atol=0)
    assert_close(found[1], adamw(tensor(VECTOR), vector, 0.0), rtol=1e-6, atol=0)


def test_the_norm_reported_is_that_before_clipping(tmp_path):
    assert [row["grad/norm"] for row in train(tmp_path, 2)[2]] == pytest.approx([3.0, 0.3])


class Slow(Method):
    """A step takes a minute on a clock of its own."""

    def __init__(self, model):
        self.model, self.seconds = model, 0.0

    def updates(self, step):
        self.seconds += 60.0
        yield [lambda: self.model(torch.ones(1, 1)).sum()]

    def idle(self):
        raise AssertionError("one process is never idle")

    def metrics(self):
        return {}


@pytest.mark.parametrize(("minutes", "expected"), [(2.0, [2, 4, 6]), (3.0, [3, 6]), (100.0, [])])
def test_a_checkpoint_is_written_when_so_many_minutes_have_passed(tmp_path, monkeypatch, minutes, expected):
    values = {"checkpoint_every": 0, "eval_every": 0, "checkpoint_minutes": minutes, "keep_checkpoints": 9}
    accelerator = trainer.make_accelerator(COMPUTE)
    loop = TrainingLoop(accelerator, nn.Linear(1, 1), settings(**values), 7, tmp_path, SilentObserver())
    method = Slow(loop.model)
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: method.seconds))
    loop.run(method)
    assert sorted(path.name for path in tmp_path.glob("checkpoints/*")) == [f"step-{step:08d}" for step in expected]
