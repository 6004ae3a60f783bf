"""Expected gradients, exactly: every group of completions a small policy can sample, with its probability, in float64.

What is summed up are the gradients of losses made of the pure functions alone, so a bias has nowhere to hide; what they
are compared with is the gradient of E[r] - kl_coef * KL(pi || pi_ref), differentiated as it is defined.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rloo_core.advantages import (
    RunningMean,
    best_of_group,
    generalized_advantages,
    group_mean,
    group_standardised,
    leave_one_out,
    token_rewards,
)
from rloo_core.kl import kl_per_token, kl_shaped_rewards, sequence_kl
from rloo_core.losses.aggregation import aggregate
from rloo_core.losses.policy_gradient import (
    clipped_terms,
    corrected_terms,
    importance_ratio,
    reinforce_loss,
    reinforce_terms,
)
from tests.rloo_core.tiny import BigramPolicy

KL_COEF = 0.3
VOCAB = 3
LENGTH = 3


@dataclass
class Group:
    """K completions of a prompt: log-probs, reference log-probs, mask, previous and sampled tokens [K, T]; rewards."""

    logprobs: Tensor
    ref_logprobs: Tensor
    mask: Tensor
    previous: Tensor
    tokens: Tensor
    rewards: Tensor

    @property
    def shaped(self) -> Tensor:
        kl = sequence_kl(self.logprobs.detach(), self.ref_logprobs, self.mask, "k1")
        return kl_shaped_rewards(self.rewards, kl, KL_COEF)


Loss = Callable[[Group], Tensor]


class World:
    """A prompt, every completion of it, a policy, its reference and a reward."""

    def __init__(self, prompt: int = 1, reward_mean: float = 1.0, reward_scale: float = 1.0) -> None:
        policy = BigramPolicy(VOCAB, seed=0)
        completions = policy.completions(LENGTH)
        self.table = policy.table.detach()
        self.ref_table = BigramPolicy(VOCAB, seed=1).table.detach()
        self.mask = torch.tensor([[t < len(y) for t in range(LENGTH)] for y in completions])
        self.tokens = torch.tensor([y + [0] * (LENGTH - len(y)) for y in completions])
        self.previous = torch.cat([torch.full_like(self.tokens[:, :1], prompt), self.tokens[:, :-1]], dim=1)
        self.rewards = torch.randn(len(completions), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        self.rewards = reward_mean + reward_scale * self.rewards

    def logprobs(self, table: Tensor) -> Tensor:
        return table.log_softmax(-1)[self.previous, self.tokens]

    def sequence_logprobs(self, table: Tensor) -> Tensor:
        return (self.logprobs(table) * self.mask).sum(-1)

    def objective_gradient(self, reward_weight: float = 1.0, kl_coef: float = KL_COEF) -> Tensor:
        """Of E[r] - kl_coef * KL(pi || pi_ref), from the definition of both."""

        def objective(table: Tensor) -> Tensor:
            logprobs, ref = self.sequence_logprobs(table), self.sequence_logprobs(self.ref_table)
            return (logprobs.exp() * (reward_weight * self.rewards - kl_coef * (logprobs - ref))).sum()

        return torch.func.grad(objective)(self.table).flatten()

    def group_gradients(self, loss: Loss, group_size: int, sampled_from: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Probability [Q] and minus the loss's gradient [Q, V*V] of each of the Q groups that can be sampled."""
        groups = torch.cartesian_prod(*[torch.arange(len(self.tokens))] * group_size).view(-1, group_size)
        ref_logprobs = self.logprobs(self.ref_table)

        def ascent(table: Tensor, rows: Tensor) -> Tensor:
            parts = (ref_logprobs, self.mask, self.previous, self.tokens, self.rewards)
            return -loss(Group(self.logprobs(table)[rows], *(part[rows] for part in parts)))

        gradients = torch.vmap(torch.func.grad(ascent), in_dims=(None, 0))(self.table, groups)
        behaviour = self.table if sampled_from is None else sampled_from
        return self.sequence_logprobs(behaviour)[groups].sum(1).exp(), gradients.flatten(1)

    def expected(self, loss: Loss, group_size: int, sampled_from: Tensor | None = None) -> Tensor:
        probabilities, gradients = self.group_gradients(loss, group_size, sampled_from)
        assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-12)
        return probabilities @ gradients

    def variance(self, loss: Loss, group_size: int) -> float:
        """Of one group's gradient, summed over parameters."""
        probabilities, gradients = self.group_gradients(loss, group_size)
        return (probabilities @ (gradients - probabilities @ gradients).square().sum(1)).item()


def rloo(g: Group) -> Tensor:
    return reinforce_loss(g.logprobs, leave_one_out(g.shaped[None])[0], g.mask, len(g.rewards))


def raft(g: Group) -> Tensor:
    return reinforce_loss(g.logprobs, best_of_group(g.shaped[None])[0], g.mask, 1)


def without_baseline(g: Group) -> Tensor:
    return reinforce_loss(g.logprobs, g.shaped, g.mask, len(g.rewards))


def clipped(g: Group, advantages: Tensor) -> Tensor:
    ratio = importance_ratio(g.logprobs, g.logprobs.detach(), g.mask, "token")
    return aggregate(clipped_terms(ratio, advantages, 0.2, 0.2), g.mask, "sequence_sum", len(g.rewards))


def dr_grpo(g: Group) -> Tensor:
    return clipped(g, group_mean(g.rewards[None])[0])


def grpo_without_length(g: Group) -> Tensor:
    """GRPO with the division by the std as the only difference to RLOO's direction."""
    return clipped(g, group_standardised(g.rewards[None])[0])


def raw_rloo(g: Group) -> Tensor:
    return reinforce_loss(g.logprobs, leave_one_out(g.rewards[None])[0], g.mask, len(g.rewards))


def policy_gradient_of_tokens(values: Callable[[Group], Tensor], gae_lambda: float, surrogate: str) -> Loss:
    def loss(g: Group) -> Tensor:
        kl = kl_per_token(g.logprobs.detach(), g.ref_logprobs, "k1")
        rewards = token_rewards(g.rewards, kl, KL_COEF, g.mask)
        advantages, _ = generalized_advantages(rewards, values(g), g.mask, gae_lambda)
        if surrogate == "clipped":
            return clipped(g, advantages)
        return aggregate(reinforce_terms(g.logprobs, advantages), g.mask, "sequence_sum", len(g.rewards))

    return loss


VALUES = torch.randn(LENGTH, VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def value_of_the_prefix(g: Group) -> Tensor:
    """Any function of what is there before the token: here of its position and the token before it."""
    return VALUES[torch.arange(LENGTH), g.previous]


def value_that_saw_the_token(g: Group) -> Tensor:
    return VALUES[torch.arange(LENGTH), g.tokens]


def off(found: Tensor, exact: Tensor) -> float:
    return ((found - exact).norm() / exact.norm()).item()


def cosine(found: Tensor, exact: Tensor) -> float:
    return torch.cosine_similarity(found, exact, dim=0).item()


def norm_ratio(found: Tensor, exact: Tensor) -> float:
    return (found.norm() / exact.norm()).item()


# --- unbiased -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [2, 3])
def test_rloo_is_unbiased(group_size):
    world = World()
    assert off(world.expected(rloo, group_size), world.objective_gradient()) < 1e-10


@pytest.mark.parametrize("group_size", [1, 2])
def test_reinforce_with_the_mean_of_a_fixed_past_is_unbiased(group_size):
    world, past = World(), RunningMean(count=5, total=7.3)

    def loss(g: Group) -> Tensor:
        return reinforce_loss(g.logprobs, past.advantages(g.shaped), g.mask, len(g.rewards))

    assert off(world.expected(loss, group_size), world.objective_gradient()) < 1e-10


def test_a_running_mean_that_has_seen_its_batch_would_shrink_the_gradient():
    """By S/(S+1) for S past rewards and a batch of one: why the current batch is excluded."""
    world = World()

    def loss(g: Group) -> Tensor:
        mean = (7.3 + g.shaped.sum()) / (5 + 1)
        return reinforce_loss(g.logprobs, g.shaped - mean, g.mask, 1)

    assert off(world.expected(loss, 1), 5 / 6 * world.objective_gradient()) < 1e-10


@pytest.mark.parametrize("surrogate", ["reinforce", "clipped"])
@pytest.mark.parametrize("group_size", [1, 2])
def test_vanilla_policy_gradient_is_unbiased_with_any_value_function(group_size, surrogate):
    """Also as PPO's first update: lambda = 1 and a ratio of 1, which no clip touches."""
    world = World()
    loss = policy_gradient_of_tokens(value_of_the_prefix, 1.0, surrogate)
    assert off(world.expected(loss, group_size), world.objective_gradient()) < 1e-10


def test_a_value_read_one_position_late_is_biased():
    """It knows the token it is a baseline for."""
    world = World()
    loss = policy_gradient_of_tokens(value_that_saw_the_token, 1.0, "reinforce")
    assert off(world.expected(loss, 1), world.objective_gradient()) > 0.1


def test_gae_with_a_wrong_value_function_is_biased_the_more_the_smaller_lambda_is():
    world = World()
    biases = [
        off(
            world.expected(policy_gradient_of_tokens(value_of_the_prefix, x, "reinforce"), 1),
            world.objective_gradient(),
        )
        for x in (1.0, 0.95, 0.5, 0.0)
    ]
    assert biases == sorted(biases)
    assert biases[1] > 1e-3


@pytest.mark.parametrize("group_size", [1, 2])
def test_completions_of_another_policy_are_corrected_by_the_ratio_of_sequences_and_by_no_other(group_size):
    """Untruncated, as a weight of log pi or as the ratio itself; token ratios and a cap leave a bias."""
    world = World()
    old_table = BigramPolicy(VOCAB, seed=4).table.detach()

    def loss(level: str, cap: float | None) -> Loss:
        def of_group(g: Group) -> Tensor:
            old_logprobs = old_table.log_softmax(-1)[g.previous, g.tokens]
            ratio = importance_ratio(g.logprobs, old_logprobs, g.mask, level)
            advantages = leave_one_out(g.shaped[None])[0] if group_size > 1 else g.shaped
            terms = corrected_terms(g.logprobs, ratio, advantages, cap)
            return aggregate(terms, g.mask, "sequence_sum", group_size)

        return of_group

    def ratio_itself(g: Group) -> Tensor:
        old_logprobs = old_table.log_softmax(-1)[g.previous, g.tokens]
        ratio = importance_ratio(g.logprobs, old_logprobs, g.mask, "sequence")
        return aggregate(clipped_terms(ratio, g.shaped, None, None), g.mask, "sequence_sum", group_size)

    exact = world.objective_gradient()
    assert off(world.expected(loss("sequence", None), group_size, old_table), exact) < 1e-10
    assert off(world.expected(ratio_itself, group_size, old_table), exact) < 1e-10
    for level, cap in (("token", None), ("sequence_mean", None), ("sequence", 2.0)):
        assert off(world.expected(loss(level, cap), group_size, old_table), exact) > 0.05


# --- biased, and by how much ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [2, 3])
def test_the_mean_of_all_shrinks_the_gradient(group_size):
    """Group by group: Dr. GRPO's first update, summed over tokens, is (K-1)/K times RLOO's without KL."""
    world = World()
    probabilities, of_dr_grpo = world.group_gradients(dr_grpo, group_size)
    _, of_rloo = world.group_gradients(raw_rloo, group_size)
    shrunk = (group_size - 1) / group_size
    assert off(of_dr_grpo, shrunk * of_rloo) < 1e-12
    assert off(probabilities @ of_dr_grpo, shrunk * world.objective_gradient(kl_coef=0.0)) < 1e-10


def test_dr_grpos_length_constant_is_a_constant():
    world = World()

    def loss(g: Group) -> Tensor:
        terms = reinforce_terms(g.logprobs, group_mean(g.rewards[None])[0])
        return aggregate(terms, g.mask, "fixed_length", 2, max_length=50)

    assert off(world.expected(loss, 2), world.objective_gradient(kl_coef=0.0) / (2 * 50)) < 1e-10


@pytest.mark.parametrize(("group_size", "direction", "length"), [(2, 0.9961, 1.4236), (3, 0.9620, 1.1818)])
def test_raft_follows_another_gradient(group_size, direction, length):
    """It sees the order of the rewards and not their size. Cosine and norm ratio with the objective's are kept."""
    world = World()
    found, exact = world.expected(raft, group_size), world.objective_gradient()
    assert cosine(found, exact) == pytest.approx(direction, abs=1e-4)
    assert norm_ratio(found, exact) == pytest.approx(length, abs=1e-4)


def test_raft_does_not_change_with_the_size_of_rewards():
    small, large = World(), World(reward_mean=10.0, reward_scale=10.0)

    def loss(g: Group) -> Tensor:
        return reinforce_loss(g.logprobs, best_of_group(g.rewards[None])[0], g.mask, 1)

    assert off(large.expected(loss, 2), small.expected(loss, 2)) < 1e-12
    assert off(large.objective_gradient(kl_coef=0.0), 10 * small.objective_gradient(kl_coef=0.0)) < 1e-12


@pytest.mark.parametrize(("group_size", "direction", "length"), [(2, 0.9049, 0.0734), (3, 0.9031, 0.1243)])
def test_dividing_by_the_std_follows_another_gradient_where_prompts_differ_in_scale(group_size, direction, length):
    """Two prompts, the second with rewards 10 times as spread: standardised, both weigh about the same."""
    prompts = World(prompt=1), World(prompt=2, reward_scale=10.0)
    exact = sum(world.objective_gradient(kl_coef=0.0) for world in prompts)
    unbiased = sum(world.expected(raw_rloo, group_size) for world in prompts)
    standardised = sum(world.expected(grpo_without_length, group_size) for world in prompts)
    assert off(unbiased, exact) < 1e-10
    assert cosine(standardised, exact) == pytest.approx(direction, abs=1e-4)
    assert norm_ratio(standardised, exact) == pytest.approx(length, abs=1e-4)


def test_dividing_by_the_std_is_blind_to_the_scale_of_a_prompt():
    found = [World(reward_scale=scale).expected(grpo_without_length, 3) for scale in (1.0, 10.0)]
    assert norm_ratio(found[1], found[0]) == pytest.approx(1.0, abs=1e-3)
    assert cosine(found[1], found[0]) == pytest.approx(1.0, abs=1e-6)


# --- variance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group_size", "of_rloo", "of_reinforce"), [(2, 0.2643, 28.8203), (3, 0.1597, 19.2135)])
def test_leave_one_out_removes_the_variance_of_a_large_common_reward(group_size, of_rloo, of_reinforce):
    """Rewards of mean 10 and std 1: a hundredth of the variance of the same completions without a baseline."""
    world = World(reward_mean=10.0)
    assert world.variance(rloo, group_size) == pytest.approx(of_rloo, abs=1e-4)
    assert world.variance(without_baseline, group_size) == pytest.approx(of_reinforce, abs=1e-4)


@pytest.mark.parametrize(("group_size", "of_rloo", "of_reinforce"), [(2, 0.2643, 0.2094), (3, 0.1597, 0.1396)])
def test_and_adds_some_where_there_is_no_common_reward(group_size, of_rloo, of_reinforce):
    """Rewards of mean 0: there is nothing to remove, and a baseline of K-1 samples is noise; RLOO's is as before."""
    world = World(reward_mean=0.0)
    assert world.variance(rloo, group_size) == pytest.approx(of_rloo, abs=1e-4)
    assert world.variance(without_baseline, group_size) == pytest.approx(of_reinforce, abs=1e-4)


# --- KL ---------------------------------------------------------------------------------------------------------------


def state_frozen_kl_gradient(world: World, forward: bool) -> Tensor:
    """Of the next token's KL, averaged over the prefixes the policy reaches, which are held fixed.

    Args:
        world: Policy and reference.
        forward: KL(pi_ref || pi) instead of KL(pi || pi_ref).
    """
    reached = world.sequence_logprobs(world.table).exp()[:, None] * world.mask

    def kl(table: Tensor) -> Tensor:
        policy, reference = table.log_softmax(-1), world.ref_table.log_softmax(-1)
        p, q = (reference, policy) if forward else (policy, reference)
        by_state = (p.exp() * (p - q)).sum(-1)
        return (reached * by_state[world.previous]).sum()

    return torch.func.grad(kl)(world.table).flatten()


def kl_as_a_loss(estimator: str) -> Loss:
    def loss(g: Group) -> Tensor:
        return aggregate(kl_per_token(g.logprobs, g.ref_logprobs, estimator), g.mask, "sequence_sum", len(g.rewards))

    return loss


@pytest.mark.parametrize("group_size", [1, 2])
def test_k1_in_the_reward_gives_the_gradient_of_the_kl(group_size):
    world = World()

    def loss(g: Group) -> Tensor:
        kl = sequence_kl(g.logprobs, g.ref_logprobs, g.mask, "k1")
        return reinforce_loss(g.logprobs, kl_shaped_rewards(torch.zeros_like(kl), kl, 1.0), g.mask, len(g.rewards))

    assert off(world.expected(loss, group_size), world.objective_gradient(reward_weight=0.0, kl_coef=1.0)) < 1e-10


def test_k1_as_a_loss_teaches_nothing():
    world = World()
    assert world.expected(kl_as_a_loss("k1"), 1).norm() < 1e-12


def test_k2_as_a_loss_has_the_gradient_of_the_state_frozen_kl():
    world = World()
    assert off(-world.expected(kl_as_a_loss("k2"), 1), state_frozen_kl_gradient(world, forward=False)) < 1e-10


def test_k3_as_a_loss_has_the_gradient_of_the_state_frozen_forward_kl():
    """Of KL(pi_ref || pi), although its value estimates KL(pi || pi_ref)."""
    world = World()
    found = -world.expected(kl_as_a_loss("k3"), 1)
    assert off(found, state_frozen_kl_gradient(world, forward=True)) < 1e-10
    exact = -world.objective_gradient(reward_weight=0.0, kl_coef=1.0)
    assert cosine(found, exact) == pytest.approx(0.9812, abs=1e-4)
    assert norm_ratio(found, exact) == pytest.approx(1.5744, abs=1e-4)


def test_values_of_k1_and_k3_are_unbiased():
    """Over whole completions too: sums of per-token k3 average to KL(pi || pi_ref)."""
    world = World()
    logprobs, ref = world.logprobs(world.table), world.logprobs(world.ref_table)
    probabilities = world.sequence_logprobs(world.table).exp()
    exact = (probabilities * (world.sequence_logprobs(world.table) - world.sequence_logprobs(world.ref_table))).sum()
    for estimator in ("k1", "k3"):
        found = (probabilities * sequence_kl(logprobs, ref, world.mask, estimator)).sum()
        assert found.item() == pytest.approx(exact.item(), rel=1e-12)
