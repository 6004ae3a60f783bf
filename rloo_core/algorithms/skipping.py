"""Completions without a gradient are left out of an update's passes; what a step is divided by still counts them."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from rloo_core.algorithms.experience import Experience, Pass
from rloo_core.layout import Layout
from rloo_core.settings import AlgorithmSettings
from rloo_core.types import CompletionGroups


def teaches(settings: AlgorithmSettings, experience: Experience, mask: Tensor) -> Tensor:
    """True for completions that have a gradient; the others may be left out of an update's passes.

    A completion whose advantage is zero moves neither policy nor ratio, but its critic and a KL in the loss.

    Args:
        settings: Where KL acts.
        experience: Advantages, and whether there are a critic and a reference.
        mask: True at tokens that count in the loss. Shape [P, K, T].

    Returns:
        Bool, shape [P, K].
    """
    known = experience.estimates
    pulled = known.values is not None or (settings.kl.place == "loss" and known.ref_logprobs is not None)
    moved = experience.advantages.unsqueeze(-1) if experience.advantages.ndim < mask.ndim else experience.advantages
    return (mask & ((moved != 0) | pulled)).any(-1)


def best_alone_is_cheaper(settings: AlgorithmSettings, groups: CompletionGroups, layout: Layout) -> bool:
    """Whether to find the best completions without gradient first and learn from those alone: RAFT.

    A pass with gradient costs about three without, so all tokens thrice against all once and thrice those of a prompt
    and a completion: with one prompt in a row that pays where completions are not much shorter than prompts.

    Args:
        settings: Advantage, and where KL acts: in the loss it pulls at every completion.
        groups: The step's completions.
        layout: Whether they share their prompt's computation.
    """
    if settings.advantage != "best_of_group" or (settings.kl.place == "loss" and settings.kl_coef > 0):
        return False
    prompts, completions = int(groups.prompt_mask.sum()), int(groups.response_mask.sum())
    every = (prompts if layout is Layout.SHARED else prompts * groups.group_size) + completions
    best = prompts + completions / groups.group_size
    return 2 * every > 3 * best


def taught(
    forward: Callable[[CompletionGroups], Pass], groups: CompletionGroups, teaching: Tensor, mask: Tensor
) -> tuple[Pass, Tensor]:
    """A pass over as few completions a prompt as hold all that teach, and what is left of the mask.

    Args:
        forward: The pass.
        groups: Prompts and completions.
        teaching: From `teaches`. Shape [P, K].
        mask: True at tokens that count in the loss. Shape [P, K, T].

    Returns:
        Its results among all K completions, 0 for those left out; and the mask without them.
    """
    if teaching.all() or not teaching.any():
        return forward(groups), mask
    order = teaching.int().argsort(dim=1, descending=True, stable=True)[:, : int(teaching.sum(1).max())]
    where = order[..., None].expand(-1, -1, mask.shape[-1])
    kept = (groups.response_mask & teaching[..., None]).gather(1, where)
    found = forward(replace(groups, completion_ids=groups.completion_ids.gather(1, where), response_mask=kept))

    def everywhere(values: Tensor) -> Tensor:
        return values.new_zeros(mask.shape).scatter(1, where, values)

    values = None if found.values is None else everywhere(found.values)
    return Pass(everywhere(found.logprobs), everywhere(found.entropy), values), mask & teaching[..., None]
