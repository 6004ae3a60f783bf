"""What follows from an algorithm's choices, and the functions they name."""

from collections.abc import Callable

from torch import Tensor

from rloo_core.advantages import best_of_group, group_mean, group_standardised, leave_one_out
from rloo_core.extensions import load_extension
from rloo_core.settings import AlgorithmSettings

SequenceAdvantage = Callable[[Tensor, Tensor], Tensor]
"""Shaped rewards [P, K] and which of them are scorable, bool [P, K], to advantages [P, K]."""

GROUP_ADVANTAGES: dict[str, SequenceAdvantage] = {
    "leave_one_out": leave_one_out,
    "group_mean": group_mean,
    "group_standardised": group_standardised,
    "best_of_group": best_of_group,
}


def updates_per_step(settings: AlgorithmSettings) -> int:
    """Optimiser steps a rollout batch."""
    size = settings.step_batch_size or settings.rollout_batch_size
    return settings.epochs_per_rollout * -(-settings.rollout_batch_size // size)


def needs_critic(settings: AlgorithmSettings) -> bool:
    """Whether advantages are those of a learned value function."""
    return settings.advantage == "gae"


def needs_reference(settings: AlgorithmSettings) -> bool:
    """Whether log-probs under the frozen start are part of training: pairs always, completions where KL costs."""
    return settings.action == "pair" or settings.kl_coef > 0


def own_advantage(settings: AlgorithmSettings) -> SequenceAdvantage | None:
    """The user's advantage function, where the settings name one and none of ours.

    Raises:
        ValueError: If it cannot be imported; on a call, if it raises or returns what are no advantages.
    """
    if settings.advantage in (None, *GROUP_ADVANTAGES, "running_mean", "gae"):
        return None
    name = str(settings.advantage)
    function = load_extension("advantages", name)
    return lambda rewards, scorable: _checked(name, function, rewards, scorable)


def _checked(name: str, function: SequenceAdvantage, rewards: Tensor, scorable: Tensor) -> Tensor:
    """What the function says, as constants; it gets copies, which it may change."""
    try:
        found = function(rewards.clone(), scorable.clone())
    except Exception as error:
        raise ValueError(
            f"algorithm.advantage={name} raised {type(error).__name__}: {error}; it is called as "
            f"f(rewards [P, K], scorable [P, K])"
        ) from error
    if not isinstance(found, Tensor) or found.shape != rewards.shape:
        got = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"algorithm.advantage={name} must return a tensor of the rewards' shape {list(rewards.shape)}; got {got}"
        )
    if not bool(found[scorable].isfinite().all()):
        raise ValueError(f"algorithm.advantage={name} must return finite advantages; got {found.tolist()!r:.200}")
    return found.detach().to(rewards).masked_fill(~scorable, 0.0)
