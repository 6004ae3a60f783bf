"""A run that is stopped anywhere and started again ends with the bits of one that was not."""

import json
import math

import pytest
import torch
from torch import nn

from rloo_core.observer import SilentObserver
from rloo_core.random_streams import generator_for
from rloo_core.settings import ComputeSettings, TrainingSettings
from rloo_core.trainer import Method, TrainingLoop, make_accelerator

STEPS = 7
COMPUTE = ComputeSettings(
    device="cpu", processes=1, threads=1, precision="float32", max_tokens_per_batch=1000, layout="auto",
    attention="auto",
    gradient_checkpointing=False,
    sampling_precision="float32",
)  # fmt: skip


def settings(**changes):
    values = {
        "seed": 0, "learning_rate": 0.1, "schedule": "cosine", "warmup_fraction": 0.3, "weight_decay": 0.01,
        "adam_beta2": 0.99, "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "eval_every": 3, "checkpoint_every": 2,
        "checkpoint_minutes": 60.0, "keep_checkpoints": 2, "keep_best": None,
    }  # fmt: skip
    return TrainingSettings(**(values | changes))


class Stopped(Exception):
    pass


class Regression(Method):
    """Noise keyed by step, dropout from torch's global generator, and something to remember."""

    def __init__(self, model, stop_at=None):
        self.model, self.stop_at, self.total, self.seen = model, stop_at, 0.0, []

    def updates(self, step):
        if step == self.stop_at:
            raise Stopped
        self.seen.append(step)
        x = torch.randn(8, 4, generator=generator_for(0, "x", step))
        yield [lambda part=part: self._loss(part) for part in x.split(3)]

    def _loss(self, x):
        loss = (self.model(nn.functional.dropout(x, 0.3)) - x.sum(1, keepdim=True)).square().sum() / 8
        self.total += loss.item()
        return loss

    def idle(self):
        raise AssertionError("one process is never idle")

    def metrics(self):
        return {"loss": self.total}

    def evaluate(self, step):
        return {"validation/loss": float(step)}

    def state(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


def train(directory, stop_at=None, **changes):
    directory.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    loop = TrainingLoop(make_accelerator(COMPUTE), model, settings(**changes), STEPS, directory, SilentObserver())
    method = Regression(loop.model, stop_at)
    try:
        loop.run(method)
    except Stopped:
        return None
    return {name: value.clone() for name, value in model.state_dict().items()}, loop.history(), method.seen


@pytest.mark.parametrize("stop_at", range(1, STEPS))
def test_stopped_at_any_step_it_ends_with_the_same_bits(tmp_path, stop_at):
    weights, history, _ = train(tmp_path / "whole")
    assert train(tmp_path / "stopped", stop_at) is None
    resumed, resumed_history, seen = train(tmp_path / "stopped")
    assert all(torch.equal(resumed[name], weights[name]) for name in weights)
    assert resumed_history == history
    assert seen[0] == stop_at // 2 * 2  # the last checkpoint, not the start


def test_learning_rate_warms_up_and_decays(tmp_path):
    history = train(tmp_path)[1]
    rates = [row["learning_rate"] for row in history[1:]]
    warmup = 2
    decay = [0.05 * (1 + math.cos(math.pi * i / (STEPS - warmup))) for i in range(5)]
    expected = [0.0, 0.05, *decay]
    assert rates == pytest.approx(expected, rel=1e-5)
    assert [row["step"] for row in history if "validation/loss" in row] == [0, 3, 6, 7]


@pytest.mark.parametrize(
    "place", ["accelerate.Accelerator.save_state", "rloo_core.checkpoints.fsync_tree", "pathlib.Path.rename"]
)
def test_killed_while_saving_the_last_checkpoint_stands(tmp_path, monkeypatch, place):
    def die(*args, **kwargs):
        raise Stopped

    whole = train(tmp_path / "whole", checkpoint_every=2)[0]
    assert train(tmp_path / "killed", stop_at=3) is None  # step-2 stands
    with monkeypatch.context() as patch:
        patch.setattr(place, die)
        assert train(tmp_path / "killed") is None
    names = [p.name for p in (tmp_path / "killed" / "checkpoints").iterdir() if not p.name.startswith(".")]
    assert names == ["step-00000002"]
    resumed = train(tmp_path / "killed", checkpoint_every=2)[0]
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    train(tmp_path, checkpoint_every=1)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000005", "step-00000006"]


def test_a_half_written_metric_line_is_forgotten(tmp_path):
    assert train(tmp_path, stop_at=5) is None
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    history = train(tmp_path)[1]
    assert [row["step"] for row in history] == list(range(STEPS + 1))
    json.dumps(history)


class Split(Regression):
    """One step in micro-batches of a given size, in float64."""

    def __init__(self, model, size):
        super().__init__(model)
        self.size = size

    def updates(self, step):
        x = torch.randn(8, 4, dtype=torch.float64, generator=generator_for(0, "x", step))
        yield [lambda part=part: (self.model(part) - 1.0).square().sum() / 8 for part in x.split(self.size)]


def test_how_a_step_is_split_changes_nothing_but_rounding(tmp_path):
    results = []
    for size in (8, 4, 3, 1):
        torch.manual_seed(0)
        model = nn.Linear(4, 1).double()
        directory = tmp_path / str(size)
        directory.mkdir()
        loop = TrainingLoop(make_accelerator(COMPUTE), model, settings(), 3, directory, SilentObserver())
        loop.run(Split(loop.model, size))
        results.append(model.weight.detach().clone())
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_a_run_that_diverges_stops_and_writes_nothing(tmp_path):
    class Diverging(Regression):
        def _loss(self, x):
            return super()._loss(x) * (float("nan") if self.seen[-1] == 3 else 1.0)

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    (tmp_path / "run").mkdir()
    loop = TrainingLoop(make_accelerator(COMPUTE), model, settings(), STEPS, tmp_path / "run", SilentObserver())
    with pytest.raises(
        ValueError, match=r"training has diverged: grad/norm is nan\. Lower .* learning_rate \(now 0\.1\)"
    ):
        loop.run(Diverging(loop.model))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
