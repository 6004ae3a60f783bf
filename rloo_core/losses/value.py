"""Loss and quality of a learned value function."""

import torch
from torch import Tensor

from rloo_core.masking import masked_deviations


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, response_mask: Tensor, clip: float | None, denominator: float
) -> Tensor:
    """Half the squared error of the predicted return-to-go, pessimistically clipped.

        1/(2N) * sum over t of max((V - R)^2, (clamp(V, V_old - clip, V_old + clip) - R)^2)

    With the factor 1/2 the gradient of a term is the error itself.

    Args:
        values: Predictions, with gradient; reward units. Shape [..., T].
        old_values: Predictions at rollout; looked at only where `clip` is given. Shape [..., T].
        returns: What to predict. Shape [..., T].
        response_mask: True where the policy chose the token. Shape [..., T].
        clip: How far a value may move from its old one; None does not clip.
        denominator: N, valid tokens of the whole step over all micro-batches and processes. Below 1 it counts as 1.

    Returns:
        Scalar, squared reward units.

    References:
        Schulman et al. 2017, Eq. 9, https://arxiv.org/abs/1707.06347; its clipping is that of
        https://github.com/openai/baselines (ppo2).
    """
    returns = returns.detach()
    squares = (values - returns).masked_fill(~response_mask, 0.0).square()
    if clip is not None:
        old_values = old_values.detach()
        moved = (values - old_values).clamp(-clip, clip) + old_values
        squares = torch.maximum(squares, (moved - returns).masked_fill(~response_mask, 0.0).square())
    return 0.5 * squares.sum() / max(denominator, 1)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant, negative for worse.

    Args:
        values: Predictions. Any shape.
        returns: What came. Same shape.
        mask: Bool, same shape.

    Returns:
        Scalar without gradient; NaN where all returns are equal, when there is nothing to explain.
    """
    seen = mask.reshape(-1)
    total = masked_deviations(returns.detach().reshape(-1), seen, dim=0).square().sum()
    residual = masked_deviations((returns - values).detach().reshape(-1), seen, dim=0).square().sum()
    return torch.where(total > 0, 1 - residual / total, torch.nan)
