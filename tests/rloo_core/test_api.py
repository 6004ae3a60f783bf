"""Training without the pipeline: a model, prompts and rewards in, the same model changed out."""

import copy
import json

import pytest
import torch

from rloo_core.api import recipe, train_policy
from rloo_core.reward_models import RewardModel
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

PROMPTS = ["w3 w4", "w5", {"prompt": "w6 w7 w8", "bonus": 2.0}, "w9"]
SMALL = {"steps": 6, "rollout_batch_size": 8, "max_new_tokens": 8, "missing_eos_penalty": None, "learning_rate": 0.01}


def shorter(completions, **columns):
    return [-float(len(text.split())) for text in completions]


def with_bonus(completions, bonus, **columns):
    return [None if value is None else value for value in bonus]


def train(directory, rewards=shorter, model=None, name="rloo", critic=None, **changes):
    model = model or tiny_neox()
    settings = recipe(name, **(SMALL | changes))
    return model, train_policy(model, tiny_tokenizer(), PROMPTS, rewards, settings, directory, critic=critic)


def test_the_reward_rises_and_the_model_changes_in_place(tmp_path):
    start = copy.deepcopy(tiny_neox())
    model, history = train(tmp_path, steps=12)
    assert len(history) == 12
    assert sum(row["reward/mean"] for row in history[-3:]) > sum(row["reward/mean"] for row in history[:3]) + 1.0
    assert history[0]["kl/mean"] == 0.0
    assert history[-1]["kl/mean"] > 0.0  # measured against the start, not against itself
    assert any(not torch.equal(a, b) for a, b in zip(start.parameters(), model.parameters(), strict=True))


def test_two_functions_with_weights_one_of_which_knows_some_rows_only(tmp_path):
    _, history = train(tmp_path, {shorter: 0.5, with_bonus: -1.0})
    for row in history:  # two of the four prompts are in a step; one of the four has a bonus
        bonus = row.get("reward/with_bonus_mean")
        assert bonus in (None, 2.0)  # the mean over the rows it scores
        part = 0.0 if bonus is None else -2.0 / 2
        assert row["reward/mean"] == pytest.approx(0.5 * row["reward/shorter_mean"] + part)
        assert row["reward/unscorable_frac"] == 0.0
    assert {row.get("reward/with_bonus_mean") for row in history} == {None, 2.0}


def test_what_no_function_scores_is_left_out(tmp_path):
    _, history = train(tmp_path, with_bonus, group_size=2)  # all four prompts are in a step
    assert [row["reward/unscorable_frac"] for row in history] == [0.75] * 6
    assert [row["reward/mean"] for row in history] == [2.0] * 6


@pytest.mark.parametrize("name", ["reinforce", "raft", "grpo", "dr_grpo", "gspo", "dapo"])
def test_every_critic_free_method_runs(tmp_path, name):
    _, history = train(tmp_path, name=name, steps=2, overlong_buffer=None)
    assert len(history) == 2


@pytest.mark.parametrize("name", ["ppo", "vanilla_pg"])
def test_methods_with_a_critic_are_given_its_start(tmp_path, name):
    from transformers import GPTNeoXForSequenceClassification

    torch.manual_seed(0)
    config = copy.deepcopy(tiny_neox().config)
    config.num_labels = 1
    critic = RewardModel(GPTNeoXForSequenceClassification(config).eval())
    _, history = train(tmp_path, name=name, steps=2, critic=critic)
    assert "critic/explained_variance" in history[-1]
    with pytest.raises(ValueError, match=f"algorithm {name} learns a value function; give what it starts from"):
        train(tmp_path, name=name)


def test_pairs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="algorithm=dpo learns from pairs"):
        train(tmp_path, name="dpo")


def test_a_killed_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    calls = []

    def killing(completions, **columns):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return shorter(completions)

    whole, history = train(tmp_path / "whole", checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "killed", killing, checkpoint_every=2)
    again, resumed = train(tmp_path / "killed", checkpoint_every=2)
    assert resumed == history
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))
    assert [json.loads(line) for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()] == history
