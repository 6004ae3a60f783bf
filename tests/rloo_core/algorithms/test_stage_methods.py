"""Every algorithm through the policy stage on small models: stopped anywhere it resumes to the same bits."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch.optim import AdamW

from rloo_core.observer import SilentObserver
from rloo_core.stages import policy
from tests.rloo_core.algorithms.composing import composed
from tests.rloo_core.stages.small import policy_settings, write_inputs

PPO = {"step_batch_size": 4}  # two halves, twice: four updates a step
CASES = {
    "rloo": {"kl_target": 1.0, "kl_horizon": 20, "reward_noise": 0.5},
    "reinforce": {},
    "vanilla_pg": {"rank": 4},
    "ppo": PPO,
    "raft": {"kl_target": 1.0, "kl_horizon": 20},
    "grpo": {},
    "dr_grpo": {},
    "gspo": {},
    "dapo": {"overlong_buffer": 2},
    "dpo": {"step_batch_size": 4},
    "ipo": {"algorithm": "dpo", "surrogate": "ipo"},
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("stage"))


def settings(name, rank=0, layout="padded", algorithm=None, **changes):
    own = composed(algorithm or name, **{"temperature": 0.7, "checkpoint_every": 1, "schedule": "linear"} | changes)
    return policy_settings(rank, layout).model_copy(update={"algorithm": own})


class Stopped(Exception):
    pass


def run(own, inputs, out, stop_at=None, observer=None):
    """Weights and metrics of a run; None where it was stopped before an optimiser step."""
    out.mkdir(exist_ok=True)
    taken = []

    def step(self, *arguments, original=AdamW.step, **named):
        if len(taken) == stop_at:
            raise Stopped
        taken.append(1)
        return original(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdamW, "step", step)
        try:
            policy.run(own, inputs, out, observer or SilentObserver())
        except Stopped:
            return None
    history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return load_file(out / "model" / "model.safetensors"), history, len(taken)


def same_end(own, inputs, directory, whole, stop_at):
    """Stopped before an optimiser step and started again: the same weights, and the numbers of every step once."""
    assert run(own, inputs, directory, stop_at) is None
    weights, history, _ = run(own, inputs, directory)
    assert [row["step"] for row in history] == [1, 2, 3]
    assert history == whole[1]
    assert all(torch.equal(weights[name], value) for name, value in whole[0].items())


@pytest.mark.parametrize("name", [name for name in CASES if name != "ppo"])
def test_stopped_and_started_again_every_method_ends_with_the_same_bits(inputs, tmp_path, name):
    own = settings(name, **CASES[name])
    whole = run(own, inputs, tmp_path / "whole")
    same_end(own, inputs, tmp_path / "stopped", whole, stop_at=whole[2] - 1)
    start = load_file(inputs["sft"] / "model" / "model.safetensors")
    assert any(not torch.equal(whole[0][name], value) for name, value in start.items())  # it has learned something


@pytest.fixture(scope="module")
def whole_ppo(inputs, tmp_path_factory):
    return run(settings("ppo", **PPO), inputs, tmp_path_factory.mktemp("ppo"))


@pytest.mark.parametrize("stop_at", [1, 4, 6, 7, 11])
def test_stopped_among_the_updates_of_a_step_ppo_ends_with_the_same_bits(inputs, tmp_path, whole_ppo, stop_at):
    """Three steps of four updates; checkpoints fall between steps, so that no prompt is used more often than others."""
    assert whole_ppo[2] == 12
    same_end(settings("ppo", **PPO), inputs, tmp_path, whole_ppo, stop_at)


def test_the_learning_rate_is_that_of_optimiser_steps(whole_ppo):
    """Linear over 12 updates; the rate shown is that of a step's first one: 12/12, 8/12, 4/12 of the peak."""
    assert [row["learning_rate"] for row in whole_ppo[1]] == pytest.approx([0.01, 0.01 * 8 / 12, 0.01 * 4 / 12])


def test_the_first_step_is_on_policy_and_later_updates_move_away_from_it(whole_ppo):
    assert whole_ppo[1][0]["kl/mean"] == pytest.approx(0.0, abs=1e-5)
    assert whole_ppo[1][0]["ratio/max"] > 1.01  # of all four updates together
    assert whole_ppo[1][1]["kl/k3_mean"] > 1e-4


# What is loaded


def loads(own, inputs, out, monkeypatch):
    """How often the SFT model is read."""
    calls = []
    read = policy.stage_policy
    monkeypatch.setattr(policy, "stage_policy", lambda *arguments: (calls.append(1), read(*arguments))[1])
    history = run(own, inputs, out)[1]
    return len(calls), history


@pytest.mark.parametrize(
    ("changes", "expected"), [({"kl_coef": 0.0}, 1), ({"kl_coef": 0.1}, 2), ({"kl_coef": 0.1, "rank": 4}, 1)]
)
def test_a_reference_is_loaded_where_kl_costs_and_adapters_need_none(inputs, tmp_path, monkeypatch, changes, expected):
    calls, history = loads(settings("rloo", steps=1, **changes), inputs, tmp_path, monkeypatch)
    assert calls == expected
    assert any(name.startswith("kl/") for name in history[-1]) is (changes["kl_coef"] > 0)


@pytest.mark.parametrize("name", ["ppo", "rloo"])
def test_a_critic_is_made_where_the_advantage_needs_one(inputs, tmp_path, monkeypatch, name):
    made = []
    real = policy.Critic
    monkeypatch.setattr(policy, "Critic", lambda *a: made.append(real(*a)) or made[-1])
    history = run(settings(name, steps=1), inputs, tmp_path)[1]
    assert len(made) == (1 if name == "ppo" else 0)
    assert ("critic/grad_norm" in history[0]) is (name == "ppo")


@pytest.mark.parametrize("start", ["reward_model", "sft"])
def test_the_critic_starts_where_the_settings_say(inputs, tmp_path, monkeypatch, start):
    """From the reward model, head and all, or from the SFT model's decoder."""
    states = []
    real = policy.Critic

    def critic(model, layout):
        states.append({name: value.clone() for name, value in model.classifier.state_dict().items()})
        return real(model, layout)

    monkeypatch.setattr(policy, "Critic", critic)
    run(settings("vanilla_pg", steps=1, critic_start=start), inputs, tmp_path)
    saved = load_file(inputs[start] / "model" / "model.safetensors")
    shared = [name for name in saved if name in states[0]]
    assert ("score.weight" in shared) is (start == "reward_model")
    assert len(shared) > 10
    assert all(torch.equal(states[0][name], saved[name]) for name in shared)


# What is told


class Listener(SilentObserver):
    def __init__(self):
        self.messages = []

    def message(self, text):
        self.messages.append(text)


@pytest.mark.parametrize("changes", [{"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_sampling_from_a_part_of_the_distribution_is_told(inputs, tmp_path, changes):
    heard = Listener()
    run(settings("rloo", steps=1, **changes), inputs, tmp_path, observer=heard)
    (name,) = changes
    assert [text for text in heard.messages if name in text and "untruncated distribution" in text]


def test_a_stop_string_ends_completions_as_eos_does(inputs, tmp_path):
    """Any word ends one here: each has one token, and none was cut off. Without it most are."""
    history = run(settings("rloo", steps=1, stop=("w",)), inputs, tmp_path / "stopped")[1]
    assert history[-1]["completion/length_mean"] == 1.0
    assert history[-1]["completion/finished_frac"] == 1.0
    assert history[-1]["validation/length"] == 1.0
    assert history[-1]["validation/finished"] == 1.0
    assert run(settings("rloo", steps=1), inputs, tmp_path / "plain")[1][-1]["completion/finished_frac"] < 1.0


def test_sampling_from_the_policy_itself_needs_no_words(inputs, tmp_path):
    heard = Listener()
    run(settings("rloo", steps=1), inputs, tmp_path, observer=heard)
    assert not [text for text in heard.messages if "untruncated" in text]


@pytest.mark.parametrize("name", ["rloo", "ppo", "dpo"])
def test_adapters_start_at_the_sft_model(inputs, tmp_path, name):
    """The reference is the policy without its adapters: KL 0 before the first update, and not after."""
    history = run(settings(name, rank=4, steps=2, eval_every=1, learning_rate=0.1), inputs, tmp_path)[1]
    assert history[0]["validation/kl"] == 0.0
    assert history[-1]["validation/kl"] != 0.0
