"""Language-model heads: from hidden states to log-probs, a few rows at a time.

With a vocabulary of 50,000, the logits of a thousand tokens take 200 MB and their softmax and gradients several times
that. Here they exist for a chunk of tokens at a time; the backward pass goes through the chunks again.
"""

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

CHUNK = 2**24  # logits that exist at once: 64 MB in float32, enough rows for matrix products at full speed
CACHED = 2**19  # logits that are normalised at once: 2 MB, which stay in a processor's cache from pass to pass
KEPT = 2**26  # probabilities kept for the backward pass, chunk by chunk; those of further chunks are computed again
TOLERANCE = 1e-4  # relative difference between a head as it is understood here and the model's own that is rounding


class Head(NamedTuple):
    """logits = cap · tanh(scale · (hidden Wᵀ + bias) / cap), without the tanh where there is no cap."""

    weight: Tensor  # [V, hidden]
    bias: Tensor | None  # [V]
    scale: float
    cap: float | None


class Distribution(NamedTuple):
    """Of given tokens under softmax(logits / temperature), both float32 (float64 for float64 models). Shape [N]."""

    logprobs: Tensor
    entropy: Tensor  # nats, no gradient; zero where it was not asked for


def unwrapped(model: Any) -> Any:
    """The Hugging Face model inside wrappers for several processes and for adapters."""
    while isinstance(getattr(model, "module", None), nn.Module):
        model = model.module
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def decoder_of(model: Any) -> Any:
    """The part of a causal language model whose last hidden states its head reads."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


_heads: "weakref.WeakKeyDictionary[nn.Module, tuple[bool, float, float | None]]" = weakref.WeakKeyDictionary()


def head_of(model: Any) -> Head | None:
    """The head of a causal language model, if it is a linear layer with at most a scale and a soft-cap.

    What the configuration says is tried on the model itself, once a model.

    Args:
        model: The model without wrappers, see `unwrapped`.
    """
    if model not in _heads:
        _heads[model] = _understood(model)
    works, scale, cap = _heads[model]
    if not works:
        return None
    layer = model.get_output_embeddings()
    return Head(layer.weight, layer.bias, scale, cap)


def token_distribution(
    hidden: Tensor, tokens: Tensor, head: Head, temperature: float, entropy: bool = True
) -> Distribution:
    """Log-probs of tokens and the entropy of what they were drawn from.

    Args:
        hidden: Hidden states that predict the tokens. Shape [N, hidden].
        tokens: Token ids. Shape [N].
        head: The model's head; gradients reach its weights.
        temperature: Logits are divided by it.
        entropy: Whether anybody wants it: it takes two more passes over the logits.
    """
    weight, bias = head.weight.to(hidden.dtype), None if head.bias is None else head.bias.to(hidden.dtype)
    values: tuple[Tensor, Tensor] = _Chunked.apply(
        hidden, weight, bias, tokens, head.scale, head.cap, temperature, torch.is_grad_enabled(), entropy
    )
    return Distribution(*values)


def in_float32(values: Tensor) -> Tensor:
    """Values in float32, or in float64 if that is what they are: sums over a vocabulary need no less."""
    return values if values.dtype == torch.float64 else values.float()


def _understood(model: Any) -> tuple[bool, float, float | None]:
    """Whether the head is what its configuration says, its scale, and its soft-cap."""
    config = getattr(model, "config", None)
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if config is None or type(layer) is not nn.Linear:
        return False, 1.0, None
    config = config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    head = Head(layer.weight, layer.bias, scale, None if cap is None else float(cap))
    seen: list[Tensor] = []
    hook = decoder_of(model).register_forward_hook(lambda module, args, out: seen.append(out.last_hidden_state))
    inputs = model.get_input_embeddings().weight[None, :4]  # of a few tokens
    try:
        with torch.no_grad():
            own = model(inputs_embeds=inputs, use_cache=False).logits[0]
            found = _logits(seen[0][0].to(layer.weight.dtype), head.weight, head.bias, head.scale, head.cap)
    finally:
        hook.remove()
    agrees = bool((own - found).abs().max() <= TOLERANCE * own.abs().max())
    return agrees, head.scale, head.cap


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float, cap: float | None) -> Tensor:
    logits = in_float32(linear(hidden, weight, bias))
    if scale != 1.0:
        logits = logits.mul_(scale)
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


class _Chunked(torch.autograd.Function):
    """Log-probs and entropies by chunk. The gradient of a log-prob in the logits is onehot(token) - softmax."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        scale: float,
        cap: float | None,
        temperature: float,
        keep: bool,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, CHUNK // len(weight))
        room = KEPT if keep and cap is None and any(ctx.needs_input_grad[:3]) else 0
        kept: list[tuple[Tensor, Tensor]] = []  # of the first chunks
        parts: list[tuple[Tensor, Tensor]] = []
        scratch = _scratch(hidden, weight, rows)
        spare = _scratch(hidden[rows * (room // (rows * len(weight))) :], weight, rows)  # for chunks that are not kept
        for part, chosen in zip(hidden.split(rows), tokens.split(rows), strict=True):
            logits = _scaled_logits(part, weight, bias, (scale, cap, temperature), scratch)
            room = room if logits.numel() <= room else 0
            powers = torch.empty_like(logits) if room else spare[: len(logits)]
            totals: list[Tensor] = []
            few = max(1, CACHED // len(weight)) if logits.device.type == "cpu" else rows
            for some in zip(logits.split(few), powers.split(few), chosen.split(few), strict=True):
                logprobs, entropies, total = _normalised(*some, entropy)
                parts.append((logprobs, entropies))
                totals.append(total)
            if room:
                kept.append((powers, torch.cat(totals)))
                room -= powers.numel()
        ctx.save_for_backward(hidden, weight, tokens, bias)
        ctx.constants, ctx.rows, ctx.kept = (scale, cap, temperature), rows, kept
        empty = in_float32(hidden.new_empty(0))
        logprobs, entropies = (
            torch.cat([empty, *values]) for values in (zip(*parts, strict=True) if parts else ([], []))
        )
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        hidden, weight, tokens, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        kept, ctx.kept = ctx.kept, []  # written over; a second backward pass computes them again
        to_hidden = torch.empty_like(hidden) if wanted[0] else None
        to_weight = torch.zeros_like(weight) if wanted[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        scratch = _scratch(hidden[ctx.rows * len(kept) :], weight, ctx.rows)
        for start in range(0, len(hidden), ctx.rows):
            some = slice(start, start + ctx.rows)
            powers = kept.pop(0) if kept else _powers(hidden[some], weight, bias, ctx.constants, scratch)
            to_logits = _to_logits(hidden[some], weight, bias, tokens[some], upstream[0][some], ctx.constants, powers)
            to_logits = to_logits.to(hidden.dtype)
            if to_hidden is not None:
                torch.mm(to_logits, weight, out=to_hidden[some])
            if to_weight is not None:
                to_weight.addmm_(to_logits.t(), hidden[some])
            if to_bias is not None:
                to_bias += to_logits.sum(0)
        return to_hidden, to_weight, to_bias, None, None, None, None, None, None


def _normalised(logits: Tensor, powers: Tensor, tokens: Tensor, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs of tokens, entropies (if anybody wants them), and the sums [rows, 1] of `powers`, which is filled.

    All passes over some rows come one after the other, while the rows are in the processor's cache.
    """
    shifted = logits.sub_(logits.amax(1, keepdim=True))
    torch.exp(shifted, out=powers)
    total = powers.sum(1, keepdim=True)
    log_total = total.squeeze(1).log()
    logprobs = shifted.gather(1, tokens[:, None]).squeeze(1) - log_total
    mean = shifted.mul_(powers).sum(1) / total.squeeze(1) if entropy else log_total
    return logprobs, log_total - mean, total


def _powers(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, constants: tuple[float, float | None, float], scratch: Tensor
) -> tuple[Tensor, Tensor]:
    """What was not kept of one chunk: probabilities, not yet normalised, in `scratch`, and their sums."""
    logits = _scaled_logits(hidden, weight, bias, constants, scratch)
    powers = logits.sub_(logits.amax(1, keepdim=True)).exp_()
    return powers, powers.sum(1, keepdim=True)


def _to_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    upstream: Tensor,
    constants: tuple[float, float | None, float],
    powers: tuple[Tensor, Tensor],
) -> Tensor:
    """Gradient in the head's output of one chunk, in place of its probabilities `powers`."""
    scale, cap, temperature = constants
    gradient = (upstream * (scale / temperature))[:, None]
    probabilities, total = powers
    found = probabilities.mul_(-gradient / total)
    found.scatter_add_(1, tokens[:, None], gradient)
    if cap is not None:
        found.mul_(1 - (_logits(hidden, weight, bias, scale, cap) / cap).square_())
    return found


def _scratch(hidden: Tensor, weight: Tensor, rows: int) -> Tensor:
    """Room for the logits of a chunk, used again for each: fresh memory costs more than the arithmetic done in it."""
    return in_float32(hidden.new_empty(0)).new_empty(min(rows, max(len(hidden), 1)), len(weight))


def _scaled_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    constants: tuple[float, float | None, float],
    scratch: Tensor,
) -> Tensor:
    """Logits / temperature, in `scratch`. Shape [rows, V]."""
    scale, cap, temperature = constants
    logits = scratch[: len(hidden)]
    if cap is None and hidden.dtype == logits.dtype:
        torch.mm(hidden, weight.t(), out=logits) if bias is None else torch.addmm(bias, hidden, weight.t(), out=logits)
        factor = scale / temperature
    else:
        logits.copy_(_logits(hidden, weight, bias, scale, cap))
        factor = 1 / temperature
    if factor != 1.0:
        logits.mul_(factor)
    return logits
