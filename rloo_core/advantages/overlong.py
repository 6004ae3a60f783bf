"""A penalty that rises before the length limit is hit."""

from torch import Tensor


def soft_overlong_penalty(lengths: Tensor, max_length: int, buffer: int) -> Tensor:
    """What a completion pays for coming close to the length limit; added to its reward.

        0                                        if length <= max_length - buffer
        ((max_length - buffer) - length) / buffer   up to max_length
        -1                                       beyond

    A cliff at the limit would punish a completion for the one token that did not fit; a slope says where to stop.

    Args:
        lengths: Tokens of each completion. Any shape.
        max_length: Tokens a completion may have.
        buffer: Tokens before the limit over which the penalty grows; 1 to `max_length`.

    Returns:
        Same shape, from -1 to 0, reward units.

    Raises:
        ValueError: If `buffer` is not within 1 to `max_length`.

    References:
        Yu et al. 2025 (DAPO), Eq. 13, https://arxiv.org/abs/2503.14476
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(
            f"the overlong buffer is the part of the length limit over which the penalty grows: 1 to {max_length} "
            f"tokens; got {buffer}. Lower `overlong_buffer`, or raise `max_new_tokens`."
        )
    return ((max_length - buffer - lengths) / buffer).clamp(-1.0, 0.0)
