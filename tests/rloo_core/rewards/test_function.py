import asyncio
import math

import numpy as np
import pytest
import torch

from rloo_core.extensions import load_function
from rloo_core.rewards import FunctionReward
from rloo_core.types import CompletionGroups
from tests.rloo_core.tiny import tiny_tokenizer

ROWS = [{"prompt": "first", "length": 2}, {"prompt": "second", "length": 3}]


def groups():
    return CompletionGroups.from_ids([[3], [4]], [[[5, 1], [6, 7, 1]], [[8], [9, 1]]], 0)


def test_the_function_gets_texts_and_columns_one_a_completion():
    seen = {}

    def reward(prompts, completions, length):
        seen.update(prompts=prompts, completions=completions, length=length)
        return [1.0, 2.0, 3, 4.0]

    assert FunctionReward(reward, tiny_tokenizer(), (1,))(groups(), ROWS).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert seen == {
        "prompts": ["first", "first", "second", "second"],
        "completions": ["w5", "w6 w7", "w8", "w9"],
        "length": [2, 2, 3, 3],
    }


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, 2.0], "a list of 4 numbers; got 2 values"),
        (1.0, "a list of 4 numbers; got float"),
        ([1.0, math.nan, 0.0, 0.0], "row 1 is nan"),
        ([1.0, 0.0, math.inf, 0.0], "row 2 is inf"),
        ([1.0, 0.0, 0.0, "x"], "row 3 is 'x'"),
        ([True, 0.0, 0.0, 0.0], "row 0 is True"),
        (torch.zeros(3), "got 3 values"),
        ("1234", "got str"),
        ([1.0, 0.0, [0.0], 0.0], "row 2 is [0.0]"),
    ],
)
def test_what_is_no_reward_is_refused_by_name_and_row(returned, message):
    def my_reward(prompts, completions, **columns):
        return returned

    with pytest.raises(ValueError, match="my_reward") as error:
        FunctionReward(my_reward, tiny_tokenizer(), (1,))(groups(), ROWS)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "convert",
    [
        list,
        np.array,
        torch.tensor,
        lambda values: [np.float32(v) for v in values],
        lambda values: list(torch.tensor(values)),
    ],
)
def test_numbers_may_come_as_numpy_or_torch_make_them(convert):
    def reward(completions):
        return convert([1.0, 2.0, 3.0, 4.5])

    assert FunctionReward(reward, tiny_tokenizer(), (1,))(groups(), ROWS).tolist() == [[1.0, 2.0], [3.0, 4.5]]


def test_none_is_what_cannot_be_scored():
    def reward(completions, **columns):
        return [1.0, None, None, 0.0]

    scored = FunctionReward(reward, tiny_tokenizer(), (1,))(groups(), ROWS)
    assert scored.isnan().tolist() == [[False, True], [True, False]]


def test_a_coroutine_is_awaited_also_inside_a_running_loop():
    async def reward(completions, **columns):
        await asyncio.sleep(0)
        return [float(len(text)) for text in completions]

    scored = FunctionReward(reward, tiny_tokenizer(), (1,))
    assert scored(groups(), ROWS).tolist() == [[2.0, 5.0], [2.0, 2.0]]

    async def notebook():
        return scored(groups(), ROWS).tolist()

    assert asyncio.run(notebook()) == [[2.0, 5.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda prompts, texts: [], {}, "takes no argument `completions`; it is called as"),
        (lambda prompts, completions: [], {"low": 1}, "takes no argument low"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_is_sampled(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        FunctionReward(function, tiny_tokenizer(), (1,), arguments)


def test_a_function_gets_what_it_has_parameters_for_and_its_own_arguments():
    seen = {}

    def reward(completions, completion_ids, factor):
        seen.update(ids=completion_ids)
        return [factor] * len(completions)

    scored = FunctionReward(reward, tiny_tokenizer(), (1,), {"factor": 2.5})(groups(), ROWS)
    assert scored.tolist() == [[2.5, 2.5], [2.5, 2.5]]
    assert seen["ids"] == [[5, 1], [6, 7, 1], [8], [9, 1]]


def test_special_tokens_other_than_eos_reach_the_function():
    seen = []
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["w9"]})
    FunctionReward(lambda completions: [seen.append(t) or 0.0 for t in completions], tokenizer, (1,))(groups(), ROWS)
    assert seen[3] == "w9"


def test_functions_are_loaded_by_module_and_name():
    assert load_function("math:sqrt") is math.sqrt
    for path in ("math:nothing", "no_such_module:f", "math:pi"):
        with pytest.raises(ValueError, match=f"^{path}"):
            load_function(path)


def test_an_error_in_the_function_names_it():
    def my_reward(prompts, completions, **columns):
        raise KeyError("nope")

    with pytest.raises(ValueError, match="reward function my_reward raised KeyError: 'nope'"):
        FunctionReward(my_reward, tiny_tokenizer(), (1,))(groups(), ROWS)


def test_a_number_too_large_for_float32_is_not_finite():
    with pytest.raises(ValueError, match="row 0 is 1e\\+39"):
        FunctionReward(lambda prompts, completions, **columns: [1e39, 0, 0, 0], tiny_tokenizer(), (1,))(groups(), ROWS)


def test_any_token_that_ends_a_completion_is_no_part_of_its_text():
    """A model may name more ends than its tokenizer does (Llama 3's <|eot_id|>)."""
    seen = []

    def reward(prompts, completions, **columns):
        seen.extend(completions)
        return [0.0] * len(completions)

    FunctionReward(reward, tiny_tokenizer(), (1, 4))(
        CompletionGroups.from_ids([[3]], [[[5, 4], [5, 1], [5, 6]]], 0), ROWS[:1]
    )
    assert seen == ["w5", "w5", "w5 w6"]
