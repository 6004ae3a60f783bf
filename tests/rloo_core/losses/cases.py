"""Ragged completions of a softmax policy, small enough for gradients on paper."""

import torch
from torch import Tensor

RAGGED = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)


def softmax_case(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [3, 4, 5], sampled tokens and their log-probs [3, 4]."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator).requires_grad_()
    tokens = torch.randint(5, (3, 4), generator=generator)
    return logits, tokens, logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
