"""DPO, conservative DPO and IPO: gradient and metrics of a step from the definitions, one completion at a time."""

import math

import pytest
import torch

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.dpo import PreferenceOptimisation
from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.processes import Processes
from tests.rloo_core.algorithms.building import gradient
from tests.rloo_core.algorithms.composing import composed, distance
from tests.rloo_core.algorithms.ragged import COMPLETIONS, PROMPTS, gradient_of, lines
from tests.rloo_core.tiny import tiny_neox

BETA = 0.2
LOSSES = {
    ("dpo", 0.0): lambda m: (1 + (-BETA * m).exp()).log(),
    ("dpo", 0.1): lambda m: 0.9 * (1 + (-BETA * m).exp()).log() + 0.1 * (1 + (BETA * m).exp()).log(),
    ("ipo", 0.0): lambda m: (m - 1 / (2 * BETA)) ** 2,
}


def make(surrogate="dpo", smoothing=0.0, max_tokens=10**6, same=False, **changes):
    policy, reference = tiny_neox().double(), tiny_neox(seed=0 if same else 6).double()
    given = GivenCompletions(PROMPTS, COMPLETIONS, 0, max_tokens)
    validation = GivenCompletions(PROMPTS[:2], COMPLETIONS[:2], 0, max_tokens)
    settings = composed("dpo", surrogate=surrogate, dpo_beta=BETA, dpo_label_smoothing=smoothing, **changes)
    known = reference_logprobs(reference, 1.0, Layout.SHARED)
    own = PreferenceOptimisation(settings, policy, known, given, validation, Layout.SHARED, Processes(), dict)
    return own, policy, reference


def take(own):
    for update in own.updates(0):
        for loss in update:
            loss().backward()
    return own.metrics()


def log_ratios(policy, reference):
    """Of chosen and rejected. [P][2]"""
    return [[(li.logprobs - li.ref_logprobs).sum() for li in group] for group in lines(policy, reference)]


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("kind", list(LOSSES))
def test_a_step_is_the_definition(kind, size):
    """In one update of four pairs, or in two of two: the gradients of two updates add up to twice that of one."""
    own, policy, reference = make(*kind, step_batch_size=size)
    metrics = take(own)
    pairs = log_ratios(policy, reference)
    margins = [chosen - rejected for chosen, rejected in pairs]
    loss = sum(LOSSES[kind](margin) for margin in margins) / 4
    updates = 2 if size else 1
    assert distance(gradient(policy), gradient_of(updates * loss, policy)) < 1e-9
    every = [line for group in lines(policy, reference) for line in group]
    expected = {
        "loss": loss.item(),
        "accuracy": sum(float(m > 0) for m in margins) / 4,
        "margin/mean": BETA * sum(m.item() for m in margins) / 4,
        "reward/chosen_mean": BETA * sum(chosen.item() for chosen, _ in pairs) / 4,
        "reward/rejected_mean": BETA * sum(rejected.item() for _, rejected in pairs) / 4,
        "logprob/chosen_mean": sum(li.logprobs.sum().item() for li in every[::2]) / 4,
        "logprob/rejected_mean": sum(li.logprobs.sum().item() for li in every[1::2]) / 4,
        "completion/length_mean": sum(len(li.logprobs) for li in every) / 8,
    }
    assert 0 < expected["accuracy"] < 1
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_every_token_weighs_the_same_in_the_entropy(max_tokens):
    own, policy, _ = make(max_tokens=max_tokens)
    total, tokens = 0.0, 0
    for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True):
        for ids in group:
            rows = policy(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            total, tokens = total - (rows.exp() * rows).sum().item(), tokens + len(ids)
    assert take(own)["policy/entropy"] == pytest.approx(total / tokens, rel=1e-5)


def test_at_the_start_no_pair_is_right_or_wrong():
    """Policy = reference: loss log 2, margin 0, accuracy one half."""
    metrics = take(make(same=True)[0])
    assert metrics["loss"] == pytest.approx(math.log(2))
    assert (metrics["margin/mean"], metrics["accuracy"]) == (0.0, 0.5)


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_held_out_pairs_are_measured_alike(max_tokens):
    own, policy, reference = make(max_tokens=max_tokens)
    margins = [chosen - rejected for chosen, rejected in log_ratios(policy, reference)[:2]]
    expected = {
        "validation/loss": sum(LOSSES["dpo", 0.0](m).item() for m in margins) / 2,
        "validation/accuracy": sum(float(m > 0) for m in margins) / 2,
    }
    assert own.evaluate(0) == pytest.approx(expected, rel=1e-5)


def test_every_pair_is_used_once_an_epoch():
    own, *_ = make(step_batch_size=2, epochs_per_rollout=2)
    seen = []
    own.train = _Watched(own.train, seen)
    assert len(list(own.updates(0))) == 8
    assert sorted(seen) == sorted([0, 1, 2, 3] * 2)


class _Watched:
    def __init__(self, given, seen):
        self.given, self.seen = given, seen

    def __len__(self):
        return len(self.given)

    def micro_batches(self, indices):
        self.seen.extend(indices)
        return self.given.micro_batches(indices)
