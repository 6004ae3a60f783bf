import pytest

from rloo_core.types import CompletionGroups


def groups():
    return CompletionGroups.from_ids([[5], [6, 7, 8]], [[[1, 2], [3]], [[4], [4, 4, 4]]], pad_id=0)


def test_prompts_are_padded_on_the_left_and_completions_on_the_right():
    assert groups().prompt_ids.tolist() == [[0, 0, 5], [6, 7, 8]]
    assert groups().prompt_mask.tolist() == [[False, False, True], [True, True, True]]
    assert groups().completion_ids.tolist() == [[[1, 2, 0], [3, 0, 0]], [[4, 0, 0], [4, 4, 4]]]
    assert groups().response_mask.sum(-1).tolist() == [[2, 1], [1, 3]]


def test_a_token_that_looks_like_padding_is_still_text():
    assert CompletionGroups.from_ids([[0]], [[[0, 0]]], pad_id=0).completion_lists() == [[[0, 0]]]


def test_select_drops_columns_that_are_padding_only():
    chosen = groups().select([0])
    assert chosen.prompt_ids.tolist() == [[5]]
    assert chosen.completion_ids.tolist() == [[[1, 2], [3, 0]]]


def test_lists_come_back():
    assert groups().completion_lists() == [[[1, 2], [3]], [[4], [4, 4, 4]]]
    assert groups().lengths() == ([1, 3], [[2, 1], [1, 3]])


@pytest.mark.parametrize(("prompts", "completions"), [([[]], [[[1]]]), ([[1]], [[[]]])])
def test_nothing_may_be_empty(prompts, completions):
    with pytest.raises(ValueError, match="at least one token"):
        CompletionGroups.from_ids(prompts, completions, pad_id=0)


def test_every_prompt_has_the_same_number_of_completions():
    with pytest.raises(ValueError, match="same number of completions"):
        CompletionGroups.from_ids([[1], [1]], [[[1]], [[1], [1]]], pad_id=0)
