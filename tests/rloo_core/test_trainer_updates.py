"""Several optimiser steps a step, and a critic that trains along: learning rates, clipping, what is restored."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from rloo_core.observer import SilentObserver
from rloo_core.optimization import Part
from rloo_core.trainer import Method, TrainingLoop, make_accelerator
from tests.rloo_core.test_checkpoints_and_resume import COMPUTE, Stopped, settings

STEPS, UPDATES, RATE = 5, 3, 0.1


class Descent(Method):
    """Three updates a step; the loss is linear in every weight, so each gradient is a number we choose."""

    def __init__(self, parts, slopes=(2.0, 30.0), stop_at=None):
        self.parts, self.slopes, self.stop_at, self.taken = parts, slopes, stop_at, 0

    def updates(self, step):
        for _ in range(UPDATES):
            if step == self.stop_at:
                raise Stopped
            self.taken += 1
            yield [self._half, self._half]

    def _half(self):
        pairs = zip(self.parts, self.slopes, strict=False)
        return sum(slope / 2 * part.model(torch.ones(1, 1)).sum() for part, slope in pairs)

    def idle(self):
        raise AssertionError("one process is never idle")

    def metrics(self):
        return {}


def linear():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    return model


def train(directory, stop_at=None, critic_rate=0.5, **changes):
    """The loop, its method, and the learning rates of both parts at every optimiser step."""
    directory.mkdir(exist_ok=True)
    own = settings(
        **{"schedule": "linear", "warmup_fraction": 0.0, "learning_rate": RATE, "weight_decay": 0.0} | changes
    )
    loop = TrainingLoop(
        make_accelerator(COMPUTE), linear(), own, STEPS, directory, SilentObserver(), updates_per_step=UPDATES,
        critic=Part("critic", linear(), critic_rate),
    )  # fmt: skip
    rates = []
    step = loop.optimizer.step
    loop.optimizer.step = lambda: (rates.append([group["lr"] for group in loop.optimizer.param_groups[::2]]), step())
    method = Descent(loop.parts, stop_at=stop_at)
    try:
        loop.run(method)
    except Stopped:
        return None
    return loop, method, rates


def schedule(name, warmup, update):
    """Of the peak rate, as the settings define it: a line up from 0, then constant, a line down or half a cosine."""
    if update < warmup:
        return update / warmup
    part = (update - warmup) / (STEPS * UPDATES - warmup)
    return {"constant": 1.0, "linear": 1 - part, "cosine": 0.5 * (1 + math.cos(math.pi * part))}[name]


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_the_learning_rate_moves_with_every_optimiser_step_and_the_critics_in_proportion(tmp_path, name, warmup):
    _, _, rates = train(tmp_path, schedule=name, warmup_fraction=warmup / (STEPS * UPDATES))
    expected = [schedule(name, warmup, update) for update in range(STEPS * UPDATES)]
    assert [policy for policy, _ in rates] == pytest.approx([RATE * part for part in expected])
    assert [critic for _, critic in rates] == pytest.approx([0.5 * part for part in expected])


@pytest.mark.parametrize("stop_at", range(1, STEPS))
def test_after_a_stop_the_schedule_and_both_models_go_on(tmp_path, stop_at):
    whole, _, rates = train(tmp_path / "whole", checkpoint_every=1)
    assert train(tmp_path / "stopped", stop_at, checkpoint_every=1) is None
    resumed, method, resumed_rates = train(tmp_path / "stopped", checkpoint_every=1)
    assert method.taken == (STEPS - stop_at) * UPDATES
    assert resumed_rates == rates[stop_at * UPDATES :]
    assert resumed.history() == whole.history()
    for one, other in zip(whole.parts, resumed.parts, strict=True):
        assert torch.equal(one.model.weight, other.model.weight)


def test_a_large_gradient_of_the_critic_does_not_shrink_the_policys(tmp_path):
    """Each is clipped to its own norm of 1, so the first Adam moments are 0.1 * clipped gradient."""
    loop, _, _ = train(tmp_path, max_grad_norm=1.0, adam_beta2=0.999)
    assert loop.history()[-1]["grad/norm"] == pytest.approx(2.0)
    assert loop.history()[-1]["critic/grad_norm"] == pytest.approx(30.0)
    moments = [loop.optimizer.state[part.model.weight]["exp_avg"] for part in loop.parts]
    after = 1 - 0.9 ** (STEPS * UPDATES)  # of a constant gradient
    for moment in moments:
        assert_close(moment, torch.full((1, 1), after), rtol=1e-4, atol=0)


def test_below_its_bound_a_gradient_is_left_alone(tmp_path):
    loop, _, _ = train(tmp_path, max_grad_norm=10.0)
    moments = [loop.optimizer.state[part.model.weight]["exp_avg"].item() for part in loop.parts]
    after = 1 - 0.9 ** (STEPS * UPDATES)
    assert moments == pytest.approx([2.0 * after, 10.0 * after], rel=1e-4)
