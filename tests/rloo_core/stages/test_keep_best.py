"""The model that a stage leaves is the one of its best held-out measurement, not of its last step."""

import json

import pytest
import torch
from safetensors.torch import load_file

from rloo_core.observer import SilentObserver
from rloo_core.stages import policy, reward_model, sft
from tests.rloo_core.stages.small import policy_settings, reward_model_settings, sft_settings, write_inputs

STEPS, RATE = 4, 0.03


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("stages"))


def train(inputs, out, observer=None, **changes):
    out.mkdir(exist_ok=True)
    settings = policy_settings(**({"steps": STEPS, "kl_coef": 0.0} | changes))
    summary = policy.run(settings, inputs, out, observer or SilentObserver())
    return summary, load_file(out / "model" / "model.safetensors")


STAGES = {
    "sft": (sft, "validation/loss"),
    "reward_model": (reward_model, "validation/accuracy"),
}  # a stage and what it is judged by


def teach(stage, inputs, out, observer=None, **changes):
    """SFT or reward model, two updates an epoch."""
    out.mkdir(exist_ok=True)
    changes = {"learning_rate": RATE, "epochs": 2.0} | changes
    start = inputs["sft"] / "model"
    settings = sft_settings(start, **changes) if stage == "sft" else reward_model_settings(**changes)
    summary = STAGES[stage][0].run(settings, inputs, out, observer or SilentObserver())
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


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("stage", STAGES)
def test_sft_and_reward_model_leave_their_best_too(inputs, tmp_path, stage, sign):
    """The weights of a run of just so many updates, or those it started from, and the metrics of that step."""
    metric = STAGES[stage][1]
    summary, left = teach(stage, inputs, tmp_path / "best", keep_best=f"{sign}{metric}")
    values = measured(tmp_path / "best", metric)
    assert list(values) == list(range(STEPS + 1))
    best = (min if sign else max)(values, key=values.get)
    assert summary["selected/step"] == best
    assert summary[metric] == values[best]
    _, last = teach(stage, inputs, tmp_path / "last")
    assert same(left, last) == (best == STEPS)
    if best > 0:
        assert same(left, teach(stage, inputs, tmp_path / "short", epochs=best / 2)[1])


@pytest.mark.parametrize("stage", STAGES)
def test_killed_and_resumed_they_leave_the_same(inputs, tmp_path, stage):
    """Killed before and after checkpoints, one of them older than the best measurement so far."""
    metric = STAGES[stage][1]
    for sign in ("", "-"):
        settings = {"keep_best": f"{sign}{metric}", "checkpoint_every": 2}
        summary, whole = teach(stage, inputs, tmp_path / f"whole{sign}", **settings)
        for step in (0, 1, 3, 4):
            with pytest.raises(KeyboardInterrupt):
                teach(stage, inputs, tmp_path / f"killed{sign}", Stops(step), **settings)
        resumed_summary, resumed = teach(stage, inputs, tmp_path / f"killed{sign}", **settings)
        assert same(whole, resumed)
        assert resumed_summary == summary


def test_adapters_are_kept_too(inputs, tmp_path):
    """Of a model with LoRA the adapters alone are kept, and merged as those of the last step are."""
    out = tmp_path / "best"
    out.mkdir()
    settings = reward_model_settings(2, keep_best="-validation/loss", learning_rate=1.0, epochs=2.0)
    summary = reward_model.run(settings, inputs, out, SilentObserver())
    values = measured(out, "validation/loss")
    assert summary["selected/step"] == min(values, key=values.get) < STEPS  # such a rate only makes it worse
    kept = load_file(out / "checkpoints" / "best.safetensors")
    assert kept
    assert all("lora" in name or "score" in name for name in kept)


def test_nothing_is_trained_if_there_is_nothing_to_measure_on(inputs, tmp_path):
    with pytest.raises(ValueError, match=r"keep_best=validation/other is not measured .*there are: validation/loss"):
        teach("sft", inputs, tmp_path / "wrong", keep_best="validation/other")
    assert list(measured(tmp_path / "wrong", "validation/loss")) == [0]


def test_a_metric_that_is_not_measured_is_refused(inputs, tmp_path):
    with pytest.raises(ValueError, match=r"keep_best=validation/nothing is not measured .*validation/proxy_reward"):
        train(inputs, tmp_path / "wrong", keep_best="validation/nothing")
