"""Several processes that train one model: who does which part, and numbers that are those of the whole.

Every process knows the whole step's plan (it is keyed by the seed), computes its own share, and sums or gathers what is
needed of the others. One process is the same code with nothing to ask.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

Item = TypeVar("Item")


class Processes:
    """The processes of a run, seen from one of them.

    Args:
        accelerator: Knows how many there are and how they talk; None is a single process.
    """

    def __init__(self, accelerator: Accelerator | None = None) -> None:
        self._accelerator = accelerator
        self.index = accelerator.process_index if accelerator is not None else 0
        self.count = accelerator.num_processes if accelerator is not None else 1

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This process's part: every `count`-th item. Shares differ by one item at most, and may be empty."""
        return list(items[self.index :: self.count])

    def sum(self, values: Tensor) -> Tensor:
        """The sum of every process's values, element by element, on the CPU. All processes must call it."""
        if self._accelerator is None or self.count == 1:
            return values.cpu()
        total: Tensor = self._accelerator.reduce(values.to(self._accelerator.device), "sum")
        return total.cpu()

    def gather(self, items: Sequence[Item]) -> list[Item]:
        """Every process's items in one list, process after process. All processes must call it."""
        if self.count == 1:
            return list(items)
        return list(gather_object(list(items)))

    def agree(self, flag: bool) -> bool:
        """True if it is true in any process: clocks differ, and all must do the same."""
        return bool(self.sum(torch.tensor(float(flag))) > 0)
