import torch
from torch.testing import assert_close

from rloo_core.losses.supervised import completion_nll


def test_nll_counts_completion_tokens_only():
    logprobs = torch.tensor([[-1.0, -2.0, -50.0, -50.0]])
    assert_close(completion_nll(logprobs, torch.tensor([[True, True, False, False]]), denominator=2), torch.tensor(1.5))
