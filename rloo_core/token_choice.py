"""One token from a distribution over a large vocabulary, cheaply.

One uniform number a token and a search: sums of blocks of the vocabulary first, then inside one block. Truncation
(top-k, top-p, min-p) drops every token below a floor; ties with the floor stay.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rloo_core.heads import in_float32

DIGIT = 11  # bits of a float32 that one pass of the nucleus search tells apart
DIGITS = (22, 11, 0)  # where they start: 31 bits and the sign, which is 0, in three passes


@dataclass(frozen=True)
class Truncation:
    """Which tokens may be drawn; None is all. In this order, each over what the one before left.

    Attributes:
        top_k: The k most probable.
        top_p: The most probable whose probabilities add up to at least p (Holtzman et al. 2020, arXiv 1904.09751).
        min_p: Those with at least min_p times the probability of the first (Nguyen et al. 2024, arXiv 2407.01082).
    """

    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


EVERY_TOKEN = Truncation()


class Choice(NamedTuple):
    """Tokens drawn and their log-probs under the untruncated distribution at the sampling temperature. Both [B]."""

    tokens: Tensor
    logprobs: Tensor


def choose_tokens(logits: Tensor, temperature: float, uniform: Tensor, truncation: Truncation = EVERY_TOKEN) -> Choice:
    """One token a row from softmax(logits / temperature).

    Args:
        logits: Shape [B, V].
        temperature: 0 takes the most probable token (the lowest id among equals), with its log-prob at temperature 1.
        uniform: Numbers in [0, 1), shape [B]; float64.
        truncation: Tokens that may be drawn; by default all.

    Raises:
        ValueError: If a row's logits are no numbers: then the model's weights are none, either.
    """
    scaled = in_float32(logits) if temperature in (0.0, 1.0) else in_float32(logits) / temperature
    shifted = scaled - scaled.amax(1, keepdim=True)
    powers = shifted.exp()
    log_total = powers.sum(1).log()
    if not bool(log_total.isfinite().all()):
        raise ValueError(
            "the model's logits are not finite, so nothing can be sampled: training has diverged. Lower the stage's "
            "learning_rate, or start again from other weights"
        )
    if temperature == 0.0:
        tokens = logits.argmax(-1)
    else:
        tokens = _search(_truncated(powers, truncation), uniform.to(logits.device))
    return Choice(tokens, shifted.gather(1, tokens[:, None]).squeeze(1) - log_total)


def _search(weights: Tensor, uniform: Tensor) -> Tensor:
    """First index at which the cumulative weight exceeds `uniform` times the total. Weights [B, V], not negative."""
    rows, vocabulary = weights.shape
    width = max(1, math.isqrt(vocabulary))
    blocks = torch.nn.functional.pad(weights, (0, -vocabulary % width)).view(rows, -1, width)
    cumulative = blocks.sum(-1, dtype=torch.float64).cumsum(1)
    total = cumulative[:, -1:]
    threshold = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    block = torch.searchsorted(cumulative, threshold, right=True)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(rows, device=weights.device), block.squeeze(1)].double().cumsum(1)
    place = torch.searchsorted(inside, threshold - before, right=True)
    last = torch.searchsorted(inside, inside[:, -1:].contiguous())  # the block's last token with any weight
    return (block * width + torch.minimum(place, last)).squeeze(1)


def _truncated(powers: Tensor, truncation: Truncation) -> Tensor:
    """Weights with zeros where a token may not be drawn; the most probable token has weight 1 and always stays."""
    if truncation.top_k is not None and truncation.top_k < powers.shape[1]:
        powers = _above(powers, powers.topk(truncation.top_k).values[:, -1:])
    if truncation.top_p is not None and truncation.top_p < 1.0:
        powers = _above(powers, _nucleus_floor(powers, truncation.top_p))
    return powers if truncation.min_p is None else _above(powers, powers.new_tensor(truncation.min_p))


def _above(weights: Tensor, floor: Tensor) -> Tensor:
    return weights.masked_fill(weights < floor, 0.0)


def _nucleus_floor(weights: Tensor, share: float) -> Tensor:
    """The largest floor such that the weights not below it add up to a share of all. Shape [B, 1].

    Positive floats are ordered as their bits are, so the floor is found digit by digit, without sorting the vocabulary:
    each pass looks only at weights that agree with the digits found so far. Weights below (1 - share) times their mean
    add up to less than what may be missing: most of a vocabulary, of which nothing need be looked at.
    """
    rows, vocabulary = weights.shape
    totals = weights.sum(1, dtype=torch.float64)
    least = 0.5 * (1 - share) / vocabulary * totals  # half of it: these sums are rounded
    candidates = weights >= least[:, None].to(weights.dtype)
    flat = weights.masked_select(candidates).float()
    bits, masses = flat.view(torch.int32), flat.double()
    row = torch.arange(rows, device=weights.device).repeat_interleave(candidates.sum(1))
    target = share * totals * (1 - 1e-12)
    floor = torch.zeros(rows, dtype=torch.int32, device=weights.device)
    for shift in DIGITS:
        digit = (bits >> shift) & (2**DIGIT - 1)
        histogram = torch.bincount(row * 2**DIGIT + digit, masses, minlength=rows * 2**DIGIT).view(rows, -1)
        found, above = _digit(histogram, target)
        target = target - above
        floor |= found.int() << shift
        inside = (digit == found[row]).nonzero().squeeze(1)
        bits, masses, row = bits[inside], masses[inside], row[inside]
    return floor.view(torch.float32).to(weights.dtype)[:, None]


def _digit(histogram: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The highest digit whose mass with all higher ones reaches a target, and the mass above it. Both [B]."""
    from_the_top = histogram.flip(1).cumsum(1)
    place = torch.searchsorted(from_the_top, torch.minimum(target[:, None], from_the_top[:, -1:]))
    above = torch.where(place > 0, from_the_top.gather(1, (place - 1).clamp(min=0)), 0.0)
    return histogram.shape[1] - 1 - place.squeeze(1), above.squeeze(1)
