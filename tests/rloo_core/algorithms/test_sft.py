import pytest
import torch
from torch.testing import assert_close

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.sft import SupervisedMethod
from tests.rloo_core.tiny import BigramPolicy

TRAIN = GivenCompletions([[1, 2], [3], [2, 3, 1]], [[[1, 0]], [[2, 2, 3, 0]], [[0]]], 0, 10**6)
VALIDATION = GivenCompletions([[3, 3], [1]], [[[2, 1, 0]], [[0]]], 0, 10**6)


def token_mean(policy, data):
    """-(sum of the log-probs of all completion tokens) / (their number), straight from the definition."""
    total = sum(policy.logprob(x, y) for x, (y,) in zip(data.prompts, data.completions, strict=True))
    return -total / sum(len(y) for (y,) in data.completions)


def split(data, max_tokens):
    return GivenCompletions(data.prompts, data.completions, data.pad_id, max_tokens)


@pytest.mark.parametrize(("max_tokens", "micro_batches"), [(10**6, 1), (10, 2), (1, 3)])
def test_the_loss_is_the_mean_over_the_tokens_of_the_step(max_tokens, micro_batches):
    policy = BigramPolicy(4, seed=0)
    method = SupervisedMethod(policy, split(TRAIN, max_tokens), split(VALIDATION, max_tokens), batch_size=3, seed=0)
    expected = token_mean(policy, TRAIN)
    for update in method.updates(0):
        assert len(update) == micro_batches
        for loss in update:
            loss().backward()
    assert method.metrics()["loss"] == pytest.approx(expected.item(), rel=1e-12)
    assert_close(policy.table.grad, torch.autograd.grad(expected, policy.table)[0])


@pytest.mark.parametrize("max_tokens", [10**6, 1])
def test_the_held_out_loss_is_the_mean_over_all_its_tokens(max_tokens):
    policy = BigramPolicy(4, seed=0)
    method = SupervisedMethod(policy, TRAIN, split(VALIDATION, max_tokens), batch_size=3, seed=0)
    expected = token_mean(policy, VALIDATION).item()
    assert method.evaluate(0)["validation/loss"] == pytest.approx(expected, rel=1e-12)
