"""Against a peer: on the same weights, completions and rewards our gradients are those of TRL 1.16.

Where the definitions differ on purpose both are run, and the difference is stated.
"""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

pytest.importorskip("trl", reason="the peer is not installed: pip install -e '.[dev]'")

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.dpo import PreferenceOptimisation
from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.models import disable_dropout
from rloo_core.processes import Processes
from tests.rloo_core.algorithms import peers
from tests.rloo_core.algorithms.building import algorithm_settings, give, gradient, online_method, rollout_of, take
from tests.rloo_core.algorithms.peers import LONGEST, GivenGRPO, GivenRLOO, batch_of, gradient_of, trainer_of
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of TRL's calls into transformers

PROMPTS = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
COMPLETIONS = [
    [[14, 15, 1], [16, 1], [17, 18, 19, 20, 21, 22], [1]],  # EOS is kept; the third is cut off
    [[5, 1], [6, 7, 8, 9, 10, 1], [11, 1], [12, 13, 14, 1]],
    [[15, 16, 17, 1], [18, 1], [19, 20, 1], [21, 22, 5, 6, 7, 8]],
]
REWARDS = [[1.0, -0.5, 2.0, 0.25], [3.0, 1.0, -1.0, 0.5], [-2.0, 0.5, 0.0, 1.5]]
SAME = 1e-5  # relative distance of gradients, float32


def first(table, group):
    return [row[:group] for row in table]


def distance(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def perturbed(model):
    """Another policy than the one that sampled: ratios are not 1, and some are clipped."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def ours(group=4, update=0, rewards=REWARDS, **changes):
    """Our advantages, gradient and metrics, of the first update or (other weights by then) of the second."""
    policy, reference = tiny_neox(seed=0), tiny_neox(seed=1)
    settings = algorithm_settings(
        **({"group_size": group, "rollout_batch_size": 3 * group, "max_new_tokens": LONGEST} | changes)
    )
    use = reference_logprobs(reference, 1.0) if settings.kl_coef > 0 else None
    method = online_method(settings, policy, use, prompts=PROMPTS, layout=Layout.SHARED)
    rollout = rollout_of(PROMPTS, first(COMPLETIONS, group), torch.tensor(first(rewards, group)))
    if update == 0:
        metrics = take(method, rollout)
        return method._metrics.gathered["advantage"].flatten(), gradient(policy), metrics
    give(method, rollout)
    for number, losses in enumerate(method.updates(0)):
        values = [loss() for loss in losses]
        if number == 0:
            perturbed(policy)
        else:
            sum(values).backward()
    return method._metrics.gathered["advantage"].flatten(), gradient(policy), method.metrics()


def theirs(kind, tmp_path, group=4, update=0, rewards=REWARDS, **options):
    """TRL's advantages, gradient and trainer, on the same."""
    policy, reference = tiny_neox(seed=0), tiny_neox(seed=1)
    trainer = trainer_of(
        kind, policy, reference, PROMPTS, first(COMPLETIONS, group), first(rewards, group), tmp_path, **options
    )
    batch = batch_of(trainer, PROMPTS, group)
    if update == 1:
        perturbed(trainer.model)
    found, loss = gradient_of(trainer, batch)
    return batch["advantages"], found, trainer, loss


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_rloo_has_the_advantages_and_gradients_of_trl(tmp_path, group, kl_coef):
    advantages, expected, _, loss = theirs(GivenRLOO, tmp_path, group, beta=kl_coef)
    found_advantages, found, metrics = ours(group, kl_coef=kl_coef)
    assert_close(found_advantages.float(), advantages, rtol=1e-5, atol=1e-5)
    assert distance(found, expected) < SAME
    # the values differ: theirs is -mean(A * ratio) = 0 at ratio 1, ours -mean(A * log pi)
    assert abs(loss) < 1e-5
    assert abs(metrics["loss/policy"]) > 0.1


def test_the_clipped_ratio_of_a_second_update_is_theirs(tmp_path):
    _, expected, _, _ = theirs(GivenRLOO, tmp_path, update=1, beta=0.1, epsilon=0.5, num_iterations=2)
    _, found, metrics = ours(
        update=1, kl_coef=0.1, epochs_per_rollout=2, ratio="sequence", clip=0.5, loss_agg="sequence_sum"
    )
    assert 0 < metrics["policy/clip_frac"] < 1
    assert distance(found, expected) < SAME


def test_kl_is_a_mean_over_tokens_there_and_over_completions_here(tmp_path):
    """Deviation: `kl/mean` is the sequence KL, what the penalty charges for; theirs is divided by the mean length."""
    _, _, trainer, _ = theirs(GivenRLOO, tmp_path, beta=0.3)
    metrics = ours(kl_coef=0.3)[2]
    mean_length = sum(len(ids) for row in COMPLETIONS for ids in row) / 12
    assert metrics["kl/mean"] == pytest.approx(trainer._metrics["train"]["kl"][0] * mean_length, rel=1e-4)
    assert mean_length > 2


def test_the_clip_of_rewards_comes_before_the_kl_and_the_baseline_in_both(tmp_path):
    """Not after the baseline, as elsewhere: a reward of 1000 counts as 2."""
    wild = [[1000.0, 0.5], [0.0, 1.0], [1.0, -1000.0]]
    advantages, expected, _, _ = theirs(GivenRLOO, tmp_path, 2, rewards=wild, beta=0.2, reward_clip_range=[-2.0, 2.0])
    clipped = torch.tensor(wild).clamp(-2, 2).tolist()  # what the collector does: tested there
    found_advantages, found, _ = ours(2, rewards=clipped, kl_coef=0.2)
    assert_close(found_advantages.float(), advantages, rtol=1e-5, atol=1e-5)
    assert distance(found, expected) < SAME


def test_their_dropout_is_on_by_default_and_ours_never(tmp_path):
    """Deviation: before any update their reference disagrees with an equal policy, here KL is 0."""
    policy = tiny_neox(seed=0, hidden_dropout=0.5, attention_dropout=0.5)
    trainer = trainer_of(
        GivenRLOO, policy, copy.deepcopy(policy), PROMPTS, COMPLETIONS, REWARDS, tmp_path, beta=0.1,
        disable_dropout=False,
    )  # fmt: skip
    torch.manual_seed(0)
    batch_of(trainer, PROMPTS, 4)
    assert abs(trainer._metrics["train"]["kl"][0]) > 1e-3
    model = disable_dropout(tiny_neox(seed=0, hidden_dropout=0.5, attention_dropout=0.5))
    model.train()
    method = online_method(
        algorithm_settings(group_size=4, rollout_batch_size=12, max_new_tokens=LONGEST),
        model, reference_logprobs(tiny_neox(seed=0), 1.0), prompts=PROMPTS,
    )  # fmt: skip
    assert take(method, rollout_of(PROMPTS, COMPLETIONS, torch.tensor(REWARDS)))["kl/mean"] == 0.0


def test_their_text_for_rewards_has_lost_its_eos(tmp_path):
    """Deviation: a reward model there reads text without the EOS it was trained on; here it gets the ids."""
    trainer = theirs(GivenRLOO, tmp_path, beta=0.0)[2]
    (seen,) = trainer.rewarded
    read_again = tiny_tokenizer()(seen["texts"])["input_ids"]
    ended = [ids for row in COMPLETIONS for ids in row if ids[-1] == 1]
    assert len(ended) == 10
    assert not any(ids and ids[-1] == 1 for ids in read_again)
    groups = rollout_of(PROMPTS, COMPLETIONS, torch.tensor(REWARDS)).groups
    assert groups.completion_lists() == COMPLETIONS  # what our rewards are given


def test_one_reward_beside_equal_ones_is_no_outlier_in_either(tmp_path):
    """A std from E[x^2] - E[x]^2 made thousands of this; both have it from centred values."""
    rewards = [[0.3, 0.3, 0.3, 1.0], [0.9, 0.9, 0.9, 0.35], [1 / 3, 1 / 3, 1 / 3, 0.0]]
    advantages = theirs(GivenGRPO, tmp_path, rewards=rewards, beta=0.0)[0]
    found = ours(rewards=rewards, kl_coef=0.0, advantage="group_standardised")[0]
    assert_close(found.float(), advantages, rtol=1e-5, atol=1e-5)
    assert found.abs().max() <= 3 / 4**0.5  # (K - 1) / sqrt(K)


def test_rewards_that_differ_by_rounding_are_not_standardised(tmp_path):
    """Deviation: one unit in the last place of a float32 gives the advantage 0 here, about 1 there."""
    rounding = [[7777.77, 7777.7705, 7777.77, 7777.77], REWARDS[1], REWARDS[2]]
    assert len(set(torch.tensor(rounding[0]).tolist())) == 2
    advantages = theirs(GivenGRPO, tmp_path, rewards=rounding, beta=0.0)[0]
    found = ours(rewards=rounding, kl_coef=0.0, advantage="group_standardised")[0]
    assert found[:4].abs().max() == 0
    assert advantages[:4].abs().max() > 0.5
    assert_close(found[4:].float(), advantages[4:], rtol=1e-5, atol=1e-5)


GRPO = {"surrogate": "reinforce", "ratio": "token", "clip": 0.2, "epochs_per_rollout": 2}
FAMILY = {  # name: (ours, theirs)
    "grpo": (
        {"advantage": "group_standardised", "loss_agg": "sequence_mean", "kl_coef": 0.04,
         "kl": {"place": "loss", "estimator": "k3"}},
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    ),
    "dr_grpo": (
        {"advantage": "group_mean", "loss_agg": "fixed_length", "kl_coef": 0.0},
        {"loss_type": "dr_grpo", "beta": 0.0, "scale_rewards": "none"},
    ),
    "gspo": (
        {"advantage": "group_standardised", "loss_agg": "sequence_mean", "kl_coef": 0.0, "ratio": "sequence_mean",
         "clip": 0.1, "clip_high": 0.15},
        {"loss_type": "grpo", "beta": 0.0, "importance_sampling_level": "sequence", "epsilon": 0.1,
         "epsilon_high": 0.15},
    ),
    "dapo": (
        {"advantage": "group_standardised", "loss_agg": "token_mean", "kl_coef": 0.0, "clip_high": 0.28},
        {"loss_type": "dapo", "beta": 0.0, "epsilon_high": 0.28},
    ),
}  # fmt: skip


@pytest.mark.parametrize("update", [0, 1])
@pytest.mark.parametrize("name", FAMILY)
def test_the_grpo_family_has_the_gradients_of_trl(tmp_path, name, update):
    changes, options = FAMILY[name]
    options = {"epsilon": 0.2, "num_iterations": 2} | options
    advantages, expected, _, _ = theirs(GivenGRPO, tmp_path, update=update, **options)
    changes = GRPO | changes if update == 1 else GRPO | changes | {"epochs_per_rollout": 1}
    found_advantages, found, metrics = ours(update=update, **changes)
    assert_close(found_advantages.float(), advantages, rtol=1e-5, atol=1e-5)
    assert distance(found, expected) < SAME
    assert (metrics["policy/clip_frac"] > 0) == (update == 1)


def test_their_kl_term_is_weighted_by_the_ratio_unless_told_otherwise(tmp_path):
    """Deviation: k3 in our loss is the published one; theirs is by default multiplied by the differentiable ratio."""
    changes, options = FAMILY["grpo"]
    options = options | {"use_bias_correction_kl": True, "beta": 0.5}
    expected = theirs(GivenGRPO, tmp_path, num_iterations=2, **options)[1]
    found = ours(**(GRPO | changes | {"epochs_per_rollout": 1, "kl_coef": 0.5}))[1]
    assert distance(found, expected) > 0.01


def pairs_gradient(surrogate, pairs, **dpo):
    policy, reference = tiny_neox(seed=0), tiny_neox(seed=1)
    settings = algorithm_settings(action="pair", advantage=None, surrogate=surrogate, rollout_batch_size=6, dpo=dpo)
    table = GivenCompletions(PROMPTS, pairs, 0, 10**6)
    method = PreferenceOptimisation(
        settings, policy, reference_logprobs(reference, 1.0), table, table, Layout.SHARED, Processes(), monitor=dict
    )
    metrics = take(method)
    return gradient(policy), metrics["loss"]


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_has_the_loss_and_gradients_of_trl(tmp_path, beta):
    pairs = first(COMPLETIONS, 2)
    expected, loss = peers.dpo_gradient(
        tiny_neox(seed=0), tiny_neox(seed=1), PROMPTS, pairs, tmp_path, beta=beta, loss_type=["sigmoid"]
    )
    found, found_loss = pairs_gradient("dpo", pairs, beta=beta)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    assert distance(found, expected) < SAME


def test_ipo_there_compares_means_over_tokens_and_here_sums(tmp_path):
    """Deviation: at one length L theirs with beta is ours with beta / L, divided by L^2; ragged, no beta fits."""
    length, beta = 4, 0.2
    pairs = [[[14, 15, 16, 1], [17, 18, 19, 1]], [[5, 6, 7, 1], [8, 9, 10, 1]], [[11, 12, 13, 1], [20, 21, 22, 1]]]
    expected, loss = peers.dpo_gradient(
        tiny_neox(seed=0), tiny_neox(seed=1), PROMPTS, pairs, tmp_path, beta=beta, loss_type=["ipo"]
    )
    found, found_loss = pairs_gradient("ipo", pairs, beta=beta / length)
    assert found_loss / length**2 == pytest.approx(loss, rel=1e-5)
    assert distance(found / length**2, expected) < SAME
    assert not math.isclose(pairs_gradient("ipo", pairs, beta=beta)[1], loss, rel_tol=0.1)
