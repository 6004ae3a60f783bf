"""Which of Transformers' ways to compute attention a model uses, in training and while it decodes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rloo_core.layout import REFUSALS, TOLERANCE, Layout, hidden_states, trial_groups

AUTO, FLEX = "auto", "flex_attention"


def use_attention(model: Any, wanted: str) -> None:
    """Let a model compute attention in a given way, where it lies; a way that is compiled is tried on the model first.

    Args:
        model: A Hugging Face model.
        wanted: "sdpa", "eager" or "flex_attention"; "auto" leaves what it was loaded with: SDPA, or eager where it has
            no other.

    Raises:
        ValueError: If the model has no such attention, or gives other numbers with it.
    """
    before = attention_of(model)
    if wanted in (AUTO, before):
        return
    try:
        model.get_correct_attn_implementation(wanted)  # says so where there is none
        expected = _trial(model) if wanted == FLEX else None
        model.set_attn_implementation(wanted)
        if attention_of(model) != wanted:
            raise ValueError(f"{type(model).__name__} cannot change its attention")
        if expected is not None:
            _compare(_trial(model), expected)
    except REFUSALS as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"compute.attention={wanted} does not work with this model: {reason}; set compute.attention=auto"
        ) from error


@contextmanager
def attention_for_decoding(model: Any) -> Iterator[None]:
    """While this is open, a model with FlexAttention uses SDPA, or eager attention where it has no other.

    A decoding step asks for a few columns, in rows that grow with every token: nothing to skip blocks of, and new
    shapes to compile for.
    """
    if attention_of(model) != FLEX:
        yield
        return
    model.set_attn_implementation(model.get_correct_attn_implementation(None))
    try:
        yield
    finally:
        model.set_attn_implementation(FLEX)


def refuse_flex_gradients(model: nn.Module, device: torch.device) -> None:
    """FlexAttention on a CPU has a forward pass only: better said before anything is computed.

    Raises:
        ValueError: If a model that is to be trained would need more.
    """
    if device.type == "cpu" and any(attention_of(part) == FLEX for part in model.modules()):
        raise ValueError(
            "compute.attention=flex_attention cannot train on this machine's CPU: PyTorch has no gradients of "
            "FlexAttention there; set compute.attention=auto, or compute.device=cuda where there is a GPU"
        )


def attention_of(model: Any) -> str | None:
    """The attention of a Hugging Face model; None for what is none."""
    found: str | None = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return found


@torch.no_grad()
def _trial(model: Any) -> torch.Tensor:
    """Hidden states of ragged random rows."""
    decoder = model.base_model
    groups = trial_groups(decoder.config.get_text_config()).to(next(decoder.parameters()).device)
    return hidden_states(decoder, groups, Layout.PADDED)[groups.response_mask]


def _compare(found: torch.Tensor, expected: torch.Tensor) -> None:
    difference = ((found - expected).abs().max() / expected.abs().max()).item()
    if not difference <= TOLERANCE:
        raise ValueError(f"hidden states differ by {difference:.1%}")
