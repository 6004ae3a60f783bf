# ruff: noqa: E501  (the sentences are what is tested, each on one line)
"""Algorithms: every file of conf/algorithm/ with every experiment, and one sentence for each contradiction."""

import pytest

from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.config_overrides import group_options
from rloo_core.algorithms import contradictions
from rloo_core.rules import RULES

ALGORITHMS, EXPERIMENTS = group_options()["algorithm"], group_options()["experiment"]
NEEDED = {"hh_stories": ("data.path=owner/rows", "model.path=owner/model"), "hh_smollm2": ("data.path=owner/rows",)}

# overrides, and the only sentence that they are answered with
SENTENCES = {
    "algorithm.name=''": "algorithm.name is empty; give the algorithm a name, e.g. rloo",
    "algorithm=dpo algorithm.surrogate=nll": "algorithm.surrogate=nll, but algorithm.action=pair learns from pairs; set it to dpo or ipo",
    "algorithm.surrogate=dpo": "algorithm.surrogate=dpo needs given pairs; set algorithm=dpo",
    "algorithm=dpo algorithm.advantage=leave_one_out": "algorithm.advantage=leave_one_out, but pairs have no rewards to compare; set algorithm.advantage=null",
    "algorithm.advantage=null": "algorithm.advantage=null, but completions that are sampled need one of leave_one_out, best_of_group, group_mean, group_standardised, running_mean, gae",
    "algorithm.action=token": "algorithm.advantage=leave_one_out is one number a completion, but algorithm.action=token needs one a token; set algorithm.advantage=gae or algorithm.action=sequence",
    "algorithm=vanilla_pg algorithm.action=sequence": "algorithm.advantage=gae is one number a token; set algorithm.action=token",
    "algorithm=raft algorithm.group_size=1": "algorithm.group_size=1, but algorithm=raft compares a completion with its siblings and needs at least 2; set algorithm.group_size=4, or algorithm=reinforce for one completion a prompt",
    "algorithm=dpo algorithm.group_size=4": "algorithm.group_size=4, but algorithm=dpo learns from pairs; set algorithm.group_size=2",
    "algorithm.rollout_batch_size=6": "algorithm.rollout_batch_size=6, but it must be a multiple of algorithm.group_size=4; set algorithm.rollout_batch_size=4",
    "algorithm.keep_best=validation/gold_reward": "algorithm.keep_best=validation/gold_reward, but the gold reward is for judging alone; set validation/proxy_reward",
    "algorithm.keep_best=reward/mean": "algorithm.keep_best=reward/mean is not measured on validation prompts; set e.g. validation/proxy_reward",
    "algorithm=reinforce algorithm.rollout_batch_size=1": "algorithm.rollout_batch_size=1, but the first batch of algorithm.advantage=running_mean has no past and compares its completions with each other; set algorithm.rollout_batch_size=2 or more",
    "algorithm.step_batch_size=256": "algorithm.step_batch_size=256, but it must divide algorithm.rollout_batch_size=128; set algorithm.step_batch_size=null for one update with all of it",
    "algorithm.step_batch_size=48": "algorithm.step_batch_size=48, but it must divide algorithm.rollout_batch_size=128; set algorithm.step_batch_size=null for one update with all of it",
    "algorithm.step_batch_size=2": "algorithm.step_batch_size=2, but it must be a multiple of algorithm.group_size=4; set algorithm.step_batch_size=4",
    "algorithm=ppo algorithm.epochs_per_rollout=1": "algorithm.ratio=token, but a rollout batch makes a single update, in which the ratio is 1 and nothing can be clipped; set algorithm.epochs_per_rollout=2, or a smaller algorithm.step_batch_size, or algorithm.ratio=none algorithm.clip=null algorithm.ratio_cap=null",
    "algorithm.clip=0.2": "algorithm.clip=0.2, but algorithm.ratio=none; set algorithm.clip=null",
    "algorithm.ratio_cap=2.0": "algorithm.ratio_cap=2.0, but algorithm.ratio=none; set algorithm.ratio_cap=null",
    "algorithm=ppo algorithm.ratio_cap=2.0": "algorithm.clip=0.2 and algorithm.ratio_cap=2.0 both bound the ratio; set one of them to null",
    "algorithm=ppo algorithm.clip=null algorithm.clip_high=0.3": "algorithm.clip_high=0.3, but algorithm.clip=null; set algorithm.clip, e.g. 0.2",
    "algorithm=ppo algorithm.ratio=sequence": "algorithm.ratio=sequence is one number a completion, but algorithm.action=token; set algorithm.ratio=token",
    "algorithm.epochs_per_rollout=2 algorithm.ratio=sequence algorithm.loss_agg=token_mean": "algorithm.loss_agg=token_mean, but with algorithm.ratio=sequence a completion has a single term; set algorithm.loss_agg=sequence_sum",
    "algorithm.epochs_per_rollout=2 algorithm.ratio=sequence_mean": "algorithm.loss_agg=sequence_sum, but with algorithm.ratio=sequence_mean a completion has a single term; set algorithm.loss_agg=sequence_mean",
    "algorithm=raft algorithm.whiten_advantages=true": "algorithm.whiten_advantages=true, but algorithm=raft is a likelihood (algorithm.surrogate=nll) and does not read it; set algorithm.whiten_advantages=false",
    "algorithm=raft algorithm.loss_agg=token_mean": "algorithm.loss_agg=token_mean, but algorithm=raft is a likelihood (algorithm.surrogate=nll) and does not read it; set algorithm.loss_agg=sequence_sum",
    "algorithm=dpo algorithm.mask_truncated=true": "algorithm.mask_truncated=true, but algorithm=dpo is a likelihood (algorithm.surrogate=dpo) and does not read it; set algorithm.mask_truncated=false",
    "algorithm.surrogate=nll": "algorithm.surrogate=nll imitates completions with a weight of at least 0, but algorithm.advantage=leave_one_out has negative ones; set algorithm.advantage=best_of_group",
    "algorithm.kl_coef=0 algorithm.kl.target=3.0": "algorithm.kl.target=3.0, but algorithm.kl_coef=0 cannot be adapted and loads no reference; set algorithm.kl_coef, e.g. 0.05",
    "algorithm.kl.target=3.0 algorithm.kl.horizon=25": "algorithm.kl.horizon=25, but a step of 128 completions could turn kl_coef negative; set it above 25.6, e.g. 10000",
    "algorithm=dpo algorithm.surrogate=ipo algorithm.dpo.label_smoothing=0.1": "algorithm.dpo.label_smoothing is for surrogate=dpo, but algorithm.surrogate=ipo; set it to 0",
    "algorithm.missing_eos=replace algorithm.missing_eos_penalty=null": "algorithm.missing_eos=replace, but algorithm.missing_eos_penalty=null says nothing to replace the reward with; set algorithm.missing_eos_penalty=1",
    "algorithm.resample_equal_rewards=2": "algorithm.resample_equal_rewards=2, but with algorithm=rloo nothing may be dropped: completions with equal raw rewards still differ in their KL, and dropping them would bias the gradient; set algorithm.resample_equal_rewards=0",
    "algorithm=reinforce algorithm.resample_equal_rewards=2": "algorithm.resample_equal_rewards=2, but with algorithm=reinforce nothing may be dropped: its baseline does not come from the group, so that equal rewards teach as much as others; set algorithm.resample_equal_rewards=0",
    "algorithm.overlong_buffer=33": "algorithm.overlong_buffer=33, but it must be at most algorithm.max_new_tokens=32",
}  # fmt: skip

FINE = [
    "algorithm=dpo algorithm.surrogate=ipo",
    "algorithm=dpo algorithm.dpo.label_smoothing=0.1",
    "algorithm.step_batch_size=64 algorithm.ratio=token algorithm.clip=0.2",
    "algorithm.epochs_per_rollout=2 algorithm.ratio=sequence algorithm.ratio_cap=2.0",
    "algorithm.kl.target=3.0 algorithm.kl.horizon=26",
    "algorithm=ppo algorithm.epochs_per_rollout=1 algorithm.step_batch_size=64",
    "algorithm=reinforce algorithm.group_size=4",
    "algorithm=vanilla_pg algorithm.group_size=2",
]


def problems(overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_settings(overrides.split())
    return caught.value.problems


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_goes_with_every_experiment(algorithm, experiment):
    settings = load_settings([f"experiment={experiment}", f"algorithm={algorithm}", *NEEDED.get(experiment, ())])
    assert settings.algorithm.name == algorithm
    assert settings.name == experiment


@pytest.mark.parametrize("overrides", list(SENTENCES))
def test_a_contradiction_is_one_sentence(overrides):
    assert problems(overrides) == (SENTENCES[overrides],)


@pytest.mark.parametrize("overrides", FINE)
def test_what_goes_together_is_accepted(overrides):
    load_settings(overrides.split())


def test_every_rule_about_algorithms_has_been_seen_to_refuse():
    broken = set()
    for overrides in SENTENCES:
        values = _values(overrides)
        broken |= {rule.check.__name__ for rule in RULES if _is_ours(rule) and rule.check(values) is not None}
    assert broken == {rule.check.__name__ for rule in RULES if _is_ours(rule)}


def _is_ours(rule) -> bool:
    return rule.check.__module__ == contradictions.__name__


def _values(overrides):
    """The settings that were refused, by dotted name."""
    kept = {}

    def keep(values, wrong=()):
        kept.update(values)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.config.broken_rules", keep)
        load_settings(overrides.split())
    return kept


def test_ppo_without_its_parts_is_vanilla_pg():
    """The paper's Figure 1 is this walk, one switch at a time."""
    switches = "algorithm.gae_lambda=1 algorithm.ratio=none algorithm.clip=null algorithm.whiten_advantages=false algorithm.epochs_per_rollout=1 algorithm.critic.value_clip=null"
    ppo = load_settings(["algorithm=ppo", *switches.split()]).algorithm
    assert ppo.model_copy(update={"name": "vanilla_pg"}) == load_settings(["algorithm=vanilla_pg"]).algorithm
