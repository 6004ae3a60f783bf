"""Training without the pipeline: a model, prompts and rewards in, the same model changed out."""

import copy
import json

import pytest
import torch

from rloo_core import api
from rloo_core.api import recipe, train_policy
from rloo_core.critics import Critic
from rloo_core.layout import Layout
from rloo_core.observer import SilentObserver
from rloo_core.settings import ComputeSettings
from tests.rloo_core.algorithms.composing import tiny_reward_model
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

PROMPTS = ["w3 w4", "w5", {"prompt": "w6 w7 w8", "bonus": 2.0}, "w9"]
SMALL = {"steps": 6, "rollout_batch_size": 8, "max_new_tokens": 8, "missing_eos_penalty": None, "learning_rate": 0.01}


def shorter(completions, **columns):
    return [-float(len(text.split())) for text in completions]


def with_bonus(completions, bonus, **columns):
    return [None if value is None else value for value in bonus]


def train(directory, rewards=shorter, model=None, name="rloo", critic=None, observer=None, **changes):
    model = model or tiny_neox()
    settings = recipe(name, **(SMALL | changes))
    return model, train_policy(
        model, tiny_tokenizer(), PROMPTS, rewards, settings, directory, critic=critic, observer=observer
    )


@pytest.mark.parametrize("has_instructions", [False, True])
def test_sampling_in_a_type_that_the_processor_imitates_is_said(tmp_path, monkeypatch, has_instructions):
    monkeypatch.setattr("rloo_core.cpu_products._multiplies_bfloat16", lambda: has_instructions)
    monkeypatch.setattr("rloo_core.cpu_products._worth_it", lambda weight: False)  # whatever this processor has
    compute = ComputeSettings.model_validate(api._yaml("compute", "cpu") | {"sampling_precision": "bfloat16"})
    observer, told = SilentObserver(), []
    observer.message = told.append
    settings = recipe("rloo", **(SMALL | {"steps": 1}))
    train_policy(
        tiny_neox(), tiny_tokenizer(), PROMPTS, shorter, settings, tmp_path, compute=compute, observer=observer
    )
    assert ["sampling_precision=bfloat16 than with float32" in text for text in told] == [True] * (not has_instructions)


def test_the_reward_rises_and_the_model_changes_in_place(tmp_path):
    start = copy.deepcopy(tiny_neox())
    model, history = train(tmp_path, steps=12)
    assert len(history) == 12
    assert sum(row["reward/mean"] for row in history[-3:]) > sum(row["reward/mean"] for row in history[:3]) + 1.0
    assert history[0]["kl/mean"] == 0.0
    assert history[-1]["kl/mean"] > 0.0  # measured against the start, not against itself
    assert any(not torch.equal(a, b) for a, b in zip(start.parameters(), model.parameters(), strict=True))


def test_attention_is_computed_as_asked_for(tmp_path):
    compute = ComputeSettings.model_validate(api._yaml("compute", "cpu") | {"attention": "eager"})
    model = tiny_neox()
    train_policy(model, tiny_tokenizer(), PROMPTS, shorter, recipe("rloo", **SMALL), tmp_path, compute=compute)
    assert model.config._attn_implementation == "eager"


def test_where_kl_costs_nothing_no_reference_is_kept_or_asked(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("there is no reference")

    monkeypatch.setattr(api, "reference_logprobs", refuse)
    _, history = train(tmp_path / "free", kl_coef=0.0, steps=2)
    assert len(history) == 2
    assert "kl/mean" not in history[-1]
    with pytest.raises(AssertionError, match="there is no reference"):
        train(tmp_path / "costs", kl_coef=0.1, steps=2)


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


def constant(completions, **columns):
    return [1.0] * len(completions)


def unknown(completions, **columns):
    return [None] * len(completions)


@pytest.mark.parametrize(
    ("name", "rewards", "changes"),
    [
        ("dapo", constant, {"overlong_buffer": None}),
        ("grpo", unknown, {}),
        ("gspo", shorter, {"mask_truncated": True, "max_new_tokens": 1}),
    ],
)
def test_a_step_in_which_nothing_counts_moves_nothing(tmp_path, name, rewards, changes):
    start = copy.deepcopy(tiny_neox())
    model, history = train(tmp_path, rewards, name=name, steps=2, **changes)
    if name == "gspo":  # a completion of one token may be EOS
        history = [row for row in history if row["completion/finished_frac"] == 0.0]
        assert history
    else:
        assert all(torch.equal(a, b) for a, b in zip(start.parameters(), model.parameters(), strict=True))
    assert not any("ratio/mean" in row for row in history)


@pytest.mark.parametrize("name", ["ppo", "vanilla_pg"])
def test_methods_with_a_critic_are_given_its_start(tmp_path, name):
    _, history = train(tmp_path, name=name, steps=2, critic=tiny_reward_model(tiny_neox()))
    assert "critic/explained_variance" in history[-1]
    with pytest.raises(ValueError, match=f"algorithm {name} learns a value function; give what it starts from"):
        train(tmp_path, name=name)


def test_the_layout_of_the_critic_is_tried_on_the_critic(tmp_path, monkeypatch):
    """The policy shares prompts; the critic, another model, cannot, and the user is told."""
    critic, chosen, told = tiny_reward_model(tiny_neox()), [], []
    decoder = critic.classifier.base_model
    monkeypatch.setattr("rloo_core.layout._why_not_shared", lambda model: "it is old" if model is decoder else None)
    monkeypatch.setattr(api, "Critic", lambda start, layout: (chosen.append(layout), Critic(start, layout))[1])
    observer = SilentObserver()
    observer.message = told.append
    train(tmp_path, name="vanilla_pg", steps=1, critic=critic, observer=observer)
    assert chosen == [Layout.PADDED]
    assert [text for text in told if "it is old" in text]


def test_pairs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="algorithm=dpo learns from pairs"):
        train(tmp_path, name="dpo")


def test_choosing_the_best_without_prompts_to_choose_by_is_refused(tmp_path):
    with pytest.raises(ValueError, match="train_policy has no validation prompts to measure"):
        train(tmp_path, keep_best="validation/proxy_reward")


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


def test_functions_of_one_name_are_all_counted(tmp_path):
    ones, fives = [lambda completions, v=v, **columns: [v] * len(completions) for v in (1.0, 5.0)]
    for index, rewards in enumerate(({ones: 1.0, fives: 1.0}, [ones, fives])):
        _, history = train(tmp_path / str(index), rewards, steps=1)
        assert history[0]["reward/mean"] == 6.0


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([], "no reward given"),
        ({shorter: float("nan")}, "must be a finite number; got nan"),
        ("my:short", "a reward is a function"),
        (lambda completions, answer: [], "needs `answer`, which is no column"),
    ],
)
def test_what_are_no_rewards_is_refused(tmp_path, rewards, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, rewards)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompts"),
        ("w3", "single text"),
        (["w3", ""], "prompt 1 is empty"),
        ([{"text": "w3"}], "has no `prompt`"),
    ],
)
def test_what_are_no_prompts_is_refused(tmp_path, prompts, message):
    with pytest.raises(ValueError, match=message):
        train_policy(tiny_neox(), tiny_tokenizer(), prompts, shorter, recipe("rloo", **SMALL), tmp_path)


@pytest.mark.parametrize("changes", [{"rollout_batch_size": 10}, {"step_batch_size": 3}, {"step_batch_size": 16}])
def test_uneven_batches_are_refused(tmp_path, changes):
    with pytest.raises(ValueError, match=r"must (be a multiple of|divide)"):
        train(tmp_path, **changes)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda rewards: rewards.mean(1), "shape .8, 4.|must return a tensor"),
        (lambda rewards: None, "got NoneType"),
        (lambda rewards: rewards * float("nan"), "finite advantages"),
        (lambda rewards: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_an_advantage_function_that_returns_no_advantages_is_named(tmp_path, monkeypatch, found, message):
    monkeypatch.setattr("rloo_core.algorithms.choices.load_extension", lambda kind, name: lambda r, scorable: found(r))
    with pytest.raises(ValueError, match=message) as error:
        train(tmp_path, advantage="mine:f")
    assert "algorithm.advantage=mine:f" in str(error.value)


def test_an_advantage_function_may_change_what_it_is_given(tmp_path, monkeypatch):
    def in_place(rewards, scorable):
        rewards -= rewards.mean(1, keepdim=True)
        return rewards

    monkeypatch.setattr("rloo_core.algorithms.choices.load_extension", lambda kind, name: in_place)
    _, history = train(tmp_path, advantage="mine:f", kl_coef=0.0, steps=1)
    assert history[0]["shaped_reward/mean"] == pytest.approx(history[0]["reward/mean"])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("rloo", {"clip": 0.2}, "algorithm.clip=0.2, but algorithm.ratio=none"),
        ("rloo", {"ratio": "token"}, "a rollout batch makes a single update"),
        ("raft", {"whiten_advantages": True}, "algorithm=raft is a likelihood"),
        ("rloo", {"resample_equal_rewards": 2}, "nothing may be dropped"),
        ("rloo", {"action": "token"}, "algorithm.action=token needs one a token"),
        ("rloo", {"kl_coef": 0.0, "kl": {"target": 3.0}}, "cannot be adapted"),
    ],
)
def test_what_the_command_refuses_the_library_refuses(name, changes, message):
    with pytest.raises(ValueError, match=message):
        recipe(name, **changes)


def test_a_directory_with_checkpoints_of_other_settings_is_refused(tmp_path):
    train(tmp_path, checkpoint_every=2)
    with pytest.raises(ValueError, match="checkpoints of a run with another learning_rate; give another"):
        train(tmp_path, checkpoint_every=2, learning_rate=0.02)
    _, history = train(tmp_path, checkpoint_every=2)  # the same ones go on, here from the last checkpoint
    assert len(history) == SMALL["steps"]
