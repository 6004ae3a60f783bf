"""The policy that a stage leaves is the one of its best held-out measurement, not of its last step."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rloo_core.observer import SilentObserver
from rloo_core.stages import policy
from tests.rloo_core.stages.small import policy_settings, write_inputs

STEPS, RATE = 4, 0.03


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("stages"))


def train(inputs, out, observer=None, **changes):
    out.mkdir(exist_ok=True)
    settings = policy_settings(**({"steps": STEPS, "kl_coef": 0.0} | changes))
    summary = policy.run(settings, inputs, out, observer or SilentObserver())
    return summary, load_file(out / "model" / "model.safetensors")


def measured(out, name="validation/proxy_reward"):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row[name] for row in rows if name in row}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("sign", ["", "-"])
def test_it_is_the_policy_after_that_many_steps(inputs, tmp_path, sign):
    """A run of just so many steps leaves the same weights; measured before the first step counts, too."""
    summary, left = train(inputs, tmp_path / "best", keep_best=f"{sign}validation/proxy_reward", learning_rate=RATE)
    values = measured(tmp_path / "best")
    assert list(values) == list(range(STEPS + 1))
    best = (min if sign else max)(values, key=values.get)  # the first of equals
    assert summary["selected/step"] == best
    assert summary["validation/proxy_reward"] == values[best]
    if best == 0:
        expected = load_file(inputs["sft"] / "model" / "model.safetensors")
    else:
        _, expected = train(inputs, tmp_path / "short", steps=best, learning_rate=RATE)
    assert same(left, expected)
    _, last = train(inputs, tmp_path / "last", learning_rate=RATE)
    assert same(left, last) == (best == STEPS)


class Stops(SilentObserver):
    """Kills the run when it reports a step."""

    def __init__(self, step):
        self.step = step

    def metrics(self, step, values):
        if step == self.step:
            raise KeyboardInterrupt


def test_a_killed_run_ends_with_the_same_weights(inputs, tmp_path):
    settings = {"keep_best": "validation/proxy_reward", "learning_rate": RATE, "checkpoint_every": 2}
    _, whole = train(inputs, tmp_path / "whole", **settings)
    for step in (1, 3, 4):
        with pytest.raises(KeyboardInterrupt):
            train(inputs, tmp_path / "killed", Stops(step), **settings)
    _, resumed = train(inputs, tmp_path / "killed", **settings)
    assert same(whole, resumed)


def test_a_metric_that_is_not_measured_is_refused(inputs, tmp_path):
    with pytest.raises(ValueError, match=r"keep_best=validation/nothing is not measured .*validation/proxy_reward"):
        train(inputs, tmp_path / "wrong", keep_best="validation/nothing")
