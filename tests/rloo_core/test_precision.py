"""Mixed precision is autocast over float32 master weights; log-probs and KL are float32 (TRL's and NeMo-RL's K10)."""

import pytest
import torch
from accelerate.state import AcceleratorState

from rloo_core.kl import sequence_kl
from rloo_core.logprobs import completion_logprobs, reference_logprobs
from rloo_core.settings import ComputeSettings
from rloo_core.trainer import make_accelerator
from rloo_core.types import CompletionGroups
from tests.rloo_core.stages.small import COMPUTE
from tests.rloo_core.tiny import tiny_llama

GROUPS = CompletionGroups.from_ids([[3, 4], [5, 6, 7]], [[[8, 9, 1], [10, 1]], [[11, 12, 13, 14], [15]]], 0)


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate keeps one precision a process; other tests have theirs."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def in_bfloat16(model):
    accelerator = make_accelerator(ComputeSettings(**(COMPUTE.model_dump() | {"precision": "bfloat16"})))
    return accelerator.prepare_model(model, evaluation_mode=True)


def test_autocast_leaves_weights_gradients_and_logprobs_in_float32():
    model = in_bfloat16(tiny_llama())
    found = completion_logprobs(model, GROUPS, temperature=0.7)
    found.logprobs.sum().backward()
    assert found.logprobs.dtype == found.entropy.dtype == torch.float32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
    exact = completion_logprobs(tiny_llama(), GROUPS, temperature=0.7).logprobs
    difference = (found.logprobs - exact).abs().max()
    assert 1e-5 < difference < 0.3  # it did run in bfloat16, and stays close


def test_a_policy_equal_to_its_reference_has_kl_of_exactly_zero_in_bfloat16():
    policy, reference = in_bfloat16(tiny_llama()), in_bfloat16(tiny_llama())
    logprobs = completion_logprobs(policy, GROUPS, temperature=0.7).logprobs.detach()
    ref_logprobs = reference_logprobs(reference, 0.7)(GROUPS)
    for estimator in ("k1", "k2", "k3"):
        assert not sequence_kl(logprobs, ref_logprobs, GROUPS.response_mask, estimator).any()
