"""Ragged completions with rewards, and what a step is made of by definition: one completion at a time, no padding."""

from dataclasses import dataclass

import torch
from torch import Tensor

PROMPTS = [[5, 6], [7], [8, 9, 10, 11, 12], [13, 14, 15]]
COMPLETIONS = [
    [[3, 1], [4, 6, 8, 2, 9, 1]],
    [[5, 5, 5, 5, 7, 3], [1]],
    [[2, 9, 1], [8, 8, 4, 1]],
    [[6, 1], [7, 2, 2, 1]],
]
REWARDS = torch.tensor([[1.0, 3.0], [-2.0, -2.5], [0.5, 0.0], [2.0, 4.0]], dtype=torch.float64)
EOS_IDS = (1,)


@dataclass
class Line:
    """What is known of one completion, straight from the definitions. All [T], with gradient."""

    logprobs: Tensor
    ref_logprobs: Tensor
    values: Tensor | None


def alone(prompt, completion, policy, reference, critic=None, temperature=1.0) -> Line:
    """The models on one row; the value of token t is read where the row ends before it."""
    row, tokens = torch.tensor([prompt + completion]), torch.tensor(completion)[:, None]

    def logprobs(model):
        logits = model(row).logits[0, len(prompt) - 1 : -1] / temperature
        return logits.log_softmax(-1).gather(1, tokens)[:, 0]

    values = None
    if critic is not None:
        states = critic.classifier.base_model(row).last_hidden_state[0, len(prompt) - 1 : -1]
        values = critic.classifier.score(states)[:, 0] - critic.offset
    return Line(logprobs(policy), logprobs(reference).detach(), values)


def lines(policy, reference, critic=None, temperature=1.0) -> list[list[Line]]:
    """Of every completion. [P][K]"""
    return [
        [alone(prompt, completion, policy, reference, critic, temperature) for completion in group]
        for prompt, group in zip(PROMPTS, COMPLETIONS, strict=True)
    ]


def gradient_of(loss, *models) -> Tensor:
    """Of a scalar, as one vector over the parameters it depends on."""
    parameters = [p for model in models for p in model.parameters()]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])
