"""Rewards of a Python function, with the signature that users of TRL know."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rloo_core.rewards.base import Row
from rloo_core.tokenization import decode_completion
from rloo_core.types import CompletionGroups

RewardFunction = Callable[..., Any]
"""`f(prompts, completions, **columns) -> list[float | None]`, or a coroutine function that returns one."""

LARGEST = torch.finfo(torch.float32).max
OFFERED = ("prompts", "completions", "completion_ids")


def reward_parameters(function: RewardFunction, arguments: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    """What a reward function takes; empty where it does not tell.

    Args:
        function: The function.
        arguments: Its own arguments, the same at every call.

    Raises:
        ValueError: If it cannot be called as `f(prompts=..., completions=..., **columns, **arguments)`.
    """
    if not callable(function):
        raise ValueError(f"a reward is a function f(prompts, completions, **columns); got {function!r:.80}")
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some builtins tell nothing
        return {}
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    by_place = [name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    unknown = [name for name in arguments if name not in parameters and not anything]
    if not (unknown or by_place) and (anything or "completions" in parameters):
        return parameters
    reason = "takes no argument `completions`"
    if unknown or by_place:
        reason = f"takes no argument {unknown[0]}" if unknown else f"takes {by_place[0]} by its place alone"
    name = function_name(function)
    raise ValueError(
        f"reward function {name}({', '.join(parameters)}) {reason}; it is called as "
        f"{name}(prompts=..., completions=..., **columns) and returns one number or None a completion"
    )


def function_name(function: RewardFunction) -> str:
    """What messages and metrics call it."""
    return str(getattr(function, "__name__", type(function).__name__))


class FunctionReward:
    """Rewards of `f(prompts, completions, **columns) -> list[float | None]`, sync or async.

    The function gets one entry a completion: `prompts` as they stand in the table (text or messages), `completions` as
    text (special tokens other than EOS are kept), `completion_ids`, and every other column of the prompts table by
    name: those it has parameters for. `None` means that it cannot score the completion.

    Args:
        function: The function.
        tokenizer: Turns ids into text.
        eos_ids: Every id that ends a completion; it is no part of the text.
        arguments: Further keyword arguments, the same at every call.

    Raises:
        ValueError: At once if the function cannot be called like this; on a call if it raises, or returns anything but
            one finite number or None a completion. The message names the function and the row.
    """

    def __init__(
        self,
        function: RewardFunction,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int],
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.tokenizer = tokenizer
        self.eos_ids = eos_ids
        self.arguments = arguments or {}
        self.name = function_name(function)
        self.parameters = reward_parameters(function, self.arguments)

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        ids = [ids for group in groups.completion_lists() for ids in group]
        spread = [row for row in rows for _ in range(groups.group_size)]
        offered: dict[str, list[Any]] = {
            "prompts": [row["prompt"] for row in spread],
            "completions": [decode_completion(self.tokenizer, one, self.eos_ids) for one in ids],
            "completion_ids": ids,
        }
        names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
        offered |= {name: [row.get(name) for row in spread] for name in names}
        wanted = {name: values for name, values in offered.items() if self._takes(name)}
        self._refuse_missing(wanted, names)
        return torch.tensor(self._numbers(self._called(wanted), len(ids))).view(len(rows), groups.group_size)

    def _refuse_missing(self, wanted: Mapping[str, Any], columns: Iterable[str]) -> None:
        """Stop where the function needs what neither the prompts table nor `arguments` has."""
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        needed = [n for n, p in self.parameters.items() if p.default is p.empty and p.kind not in variable]
        missing = [name for name in needed if name not in wanted and name not in self.arguments]
        if missing:
            raise ValueError(
                f"reward function {self.name} needs `{missing[0]}`, which is no column of the prompts table (further "
                f"columns: {', '.join(columns) or 'none'}); add the column, or give it in the term's `arguments`"
            )

    def _takes(self, name: str) -> bool:
        if not self.parameters:
            return name in OFFERED
        anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters.values())
        return (anything or name in self.parameters) and name not in self.arguments

    def _called(self, columns: dict[str, list[Any]]) -> Any:
        try:
            values = self.function(**columns, **self.arguments)
            return _awaited(values) if inspect.iscoroutine(values) else values
        except Exception as error:
            raise ValueError(f"reward function {self.name} raised {type(error).__name__}: {error}") from error

    def _numbers(self, values: Any, expected: int) -> list[float]:
        values = values.tolist() if hasattr(values, "tolist") else values
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        if not listed or len(values) != expected:
            got = f"{len(values)} values" if listed else type(values).__name__
            raise ValueError(f"reward function {self.name} must return a list of {expected} numbers; got {got}")
        return [self._number(row, value) for row, value in enumerate(values)]

    def _number(self, row: int, value: Any) -> float:
        if value is None:
            return math.nan
        shape = getattr(value, "shape", None)
        item = value.item() if hasattr(value, "item") and shape is not None and math.prod(shape) == 1 else value
        number = not isinstance(item, bool) and isinstance(item, int | float)
        if not number or not abs(item) <= LARGEST:  # NaN is not, either
            raise ValueError(
                f"reward function {self.name} must return finite numbers, or None for what it cannot score; row {row} "
                f"is {value!r}"
            )
        return float(item)


def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, also where an event loop is running already (notebooks)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
