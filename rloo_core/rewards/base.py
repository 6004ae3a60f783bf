"""The one interface of all rewards."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from rloo_core.types import CompletionGroups

Row = Mapping[str, Any]
"""A row of the prompts table: `prompt`, and any further columns."""


class Reward(Protocol):
    """Anything that scores completions."""

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        """Rewards of the completions of P prompts.

        Args:
            groups: Prompts and completions, on the CPU.
            rows: The prompts' rows of the prompts table, in the same order.

        Returns:
            Shape [P, K], float32, on the CPU; NaN where a completion cannot be scored.
        """
