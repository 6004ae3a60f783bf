"""Judges other than language models: both orders, scores, functions, reward models."""

import json

import pytest
import torch

from rloo_core.evaluation.agreement import decided_accuracy
from rloo_core.evaluation.judges.base import Judgement, Question, judge_both_orders
from rloo_core.evaluation.judges.make import Means, make_judge
from rloo_core.reward_models import load_reward_model, new_reward_model, save_reward_model, score_completions
from rloo_core.types import CompletionGroups
from tests.rloo_core.stages.small import LLM, ids, write_model
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

MEANS = Means(LLM, False, 200, torch.device("cpu"))
calls = []


def by_vowels(prompts, completions, weight, **columns):
    """A reward function; `weight` is a column of the prompts."""
    calls.append(len(completions))
    return [w * sum(letter in "aeiou" for letter in text) for w, text in zip(weight, completions, strict=True)]


def always_first(prompts, first, second, **columns):
    return [1] * len(prompts)


def undecided(prompts, first, second, **columns):
    return [None if "hard" in prompt else 0.5 for prompt in prompts]


def wrong(prompts, first, second, **columns):
    return [0.7] * len(prompts)


def outcomes(name, questions):
    return [judgement.outcome for judgement in judge_both_orders(make_judge(name, MEANS), questions)]


def question(first, second, prompt="p", **row):
    return Question(prompt, first, second, row)


def test_always_first_scores_one_half_after_swapping():
    assert outcomes(f"pairwise:{__name__}:always_first", [question("a", "b"), question("c", "c")]) == [0.5, 0.5]


@pytest.mark.parametrize("name", ["length", "brevity", "rouge"])
def test_identical_completions_score_one_half(name):
    assert outcomes(name, [question("same text", "same text", reference="some text")]) == [0.5]


def test_one_order_alone_is_no_outcome():
    assert Judgement(1.0, None).outcome is None
    assert Judgement(None, 0.0).outcome is None
    assert Judgement(1.0, 0.5).outcome == 0.75
    found = judge_both_orders(make_judge(f"pairwise:{__name__}:undecided", MEANS), [question("a", "b", "hard")])
    assert found == [Judgement(None, None)]


def test_length_brevity_and_rouge():
    pair = [question("the cat sat", "a dog", reference="a dog ran")]
    assert [outcomes(name, pair) for name in ("length", "brevity", "rouge")] == [[1.0], [0.0], [0.0]]
    with pytest.raises(ValueError, match="2 of 2 completions have none"):
        outcomes("rouge", [question("a", "b")])
    with pytest.raises(ValueError, match="knows the embedded task alone"):
        outcomes("gold", [question("a", "b")])


def test_a_reward_function_scores_every_completion_once_with_its_rows_columns():
    calls.clear()
    pairs = [question("aaa", "b", weight=1.0), question("aaa", "b", weight=-1.0)]
    assert outcomes(f"function:{__name__}:by_vowels", pairs) == [1.0, 0.0]
    assert calls == [4]


def test_a_reward_model_reads_prompt_completion_and_eos_with_its_own_tokenizer(tmp_path):
    write_model(tiny_neox(seed=3), tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    model = new_reward_model(tmp_path / "model", tiny_tokenizer(), seed=0)
    save_reward_model(model, tiny_tokenizer(), tmp_path / "judge")
    texts = ["w5 w6", "w9", "w7 w7 w8"]
    groups = CompletionGroups.from_ids([ids("w3 w4")] * 3, [[[*ids(text), 1]] for text in texts], 0)
    scores = score_completions(load_reward_model(tmp_path / "judge", tiny_tokenizer()), groups, 1000)[:, 0].tolist()
    pairs = [question(texts[i], texts[j], "w3 w4") for i, j in ((0, 1), (1, 2), (2, 0))]
    expected = [float(scores[i] > scores[j]) for i, j in ((0, 1), (1, 2), (2, 0))]
    assert outcomes(f"reward:{tmp_path / 'judge'}", pairs) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt", "there is no judge 'gpt'; choose gold, length"),
        ("function:", "there is no judge"),
        ("function:json:nothing", "judge function:json:nothing"),
        ("reward:/nowhere", "no Hugging Face model"),
    ],
)
def test_what_is_no_judge_is_refused_before_anything_is_judged(name, message):
    with pytest.raises(ValueError, match=message):
        make_judge(name, MEANS)


def test_a_function_that_gives_no_verdicts_is_refused():
    with pytest.raises(ValueError, match=r"each 1, 0.5, 0 or None; got 2, among them 0\.7"):
        outcomes(f"pairwise:{__name__}:wrong", [question("a", "b")])


def test_length_on_llmbar(shared_data):
    """LLMBar's Natural set: people prefer the longer output in 56 of 100 rows; of one row both are equally long."""
    rows = json.loads((shared_data / "llmbar" / "Natural.json").read_text())
    pairs = [question(row["output_1"], row["output_2"], row["input"]) for row in rows]
    labels = [1.0 if row["label"] == 1 else 0.0 for row in rows]
    assert decided_accuracy(outcomes("length", pairs), labels) == pytest.approx(0.565)
