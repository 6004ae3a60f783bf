"""Bradley-Terry loss of a reward model."""

from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry_loss(chosen_rewards: Tensor, rejected_rewards: Tensor, denominator: int) -> Tensor:
    """-1/N * sum of log sigmoid(r(chosen) - r(rejected)).

    Args:
        chosen_rewards: Reward of the preferred completion of each pair. Shape [P].
        rejected_rewards: Reward of the other one. Shape [P].
        denominator: N, pairs of the whole step over all micro-batches and processes.

    Returns:
        Scalar, nats a pair.

    References:
        Ahmadian et al. 2024, Eq. 1; Bradley & Terry 1952.
    """
    return -logsigmoid(chosen_rewards - rejected_rewards).sum() / denominator
