"""What a completion is worth: a reward model, or any Python function."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rloo_core.reward_models import score_completions
from rloo_core.tokenization import decode_completion
from rloo_core.types import CompletionGroups

Row = Mapping[str, Any]
RewardFunction = Callable[..., Sequence[float]]
LARGEST = torch.finfo(torch.float32).max


class Reward(Protocol):
    """Anything that scores completions."""

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        """Rewards [P, K] of the completions of P prompts, whose rows of the prompts table are `rows`."""


class ModelReward:
    """Rewards of a trained reward model, from the very ids it was trained on: nothing is decoded or tokenised again."""

    def __init__(self, model: nn.Module, max_tokens: int) -> None:
        self.model = model
        self.max_tokens = max_tokens

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        return score_completions(self.model, groups, self.max_tokens)


class FunctionReward:
    """Rewards of a Python function `f(prompts, completions, **columns) -> list of numbers`.

    The function gets one entry a completion: the prompt as it stands in the table, the completion's text, and every
    other column of the prompts table by name (TRL's convention), so it takes `**columns`.

    Args:
        function: The function.
        tokenizer: Turns ids into text.
        eos_ids: Every id that ends a completion; it is no part of the text.

    Raises:
        ValueError: On a call, if the function raises, or returns anything but one finite number a completion.
    """

    def __init__(self, function: RewardFunction, tokenizer: PreTrainedTokenizerBase, eos_ids: Sequence[int]) -> None:
        self.function = function
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.name = getattr(function, "__name__", repr(function))

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        lists = [ids for group in groups.completion_lists() for ids in group]
        texts = [decode_completion(self.tokenizer, ids, self.eos_ids) for ids in lists]
        spread = [row for row in rows for _ in range(groups.group_size)]
        columns = {name: [row[name] for row in spread] for name in rows[0] if name != "prompt"}
        try:
            values = self.function(prompts=[row["prompt"] for row in spread], completions=texts, **columns)
        except Exception as error:
            raise ValueError(f"reward function {self.name} raised {type(error).__name__}: {error}") from error
        return torch.tensor(self._checked(values, len(texts))).view(len(rows), groups.group_size)

    def _checked(self, values: Sequence[float], expected: int) -> list[float]:
        if not isinstance(values, Sequence) or len(values) != expected:
            got = f"{len(values)} values" if isinstance(values, Sequence) else type(values).__name__
            raise ValueError(f"reward function {self.name} must return a list of {expected} numbers; got {got}")
        for index, value in enumerate(values):
            number = not isinstance(value, bool) and isinstance(value, int | float)
            if not number or not abs(value) <= LARGEST:  # NaN is not, either
                raise ValueError(f"reward function {self.name} must return finite numbers; row {index} is {value!r}")
        return [float(value) for value in values]


def load_function(path: str) -> Callable[..., Any]:
    """Import `module:function`.

    Raises:
        ValueError: If there is no such module or function, naming which.
    """
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path}: {error}; it must read `module:function`") from error
    if not callable(function):
        raise ValueError(f"{path} is a {type(function).__name__}, not a function")
    loaded: Callable[..., Any] = function
    return loaded
