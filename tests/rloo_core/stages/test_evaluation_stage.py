"""The evaluation stage beyond the wiring: scorecards, further judges, several completions, files for the report."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from rloo_core.layout import Layout
from rloo_core.observer import SilentObserver
from rloo_core.stages import evaluation, evaluation_results
from tests.rloo_core.evaluation.judges.chat_server import ChatServer
from tests.rloo_core.stages.small import EOS, LLM, evaluation_settings, ids, rows_of, write_inputs

PAIRINGS = {f"{name}/{mode}" for name in ("sft", "policy", "policy_against_sft") for mode in ("greedy", "sampled")}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("stages"))


class Figures(SilentObserver):
    def __init__(self):
        self.names = set()

    def figure(self, name, figure):
        self.names.add(name)


def evaluate(inputs, out, observer=None, **changes):
    out.mkdir(exist_ok=True)
    settings = evaluation_settings(**({"judge": "reward"} | changes))
    return evaluation.run(settings, inputs, out, observer or SilentObserver())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def always_first(prompts, first, second, **columns):
    return [1] * len(prompts)


def opposite(prompts, first, second, reference, **columns):
    """Whatever has more words loses; the columns of the prompts are there."""
    assert all(isinstance(text, str) for text in reference)
    return [
        0.5 + 0.5 * ((b > a) - (b < a))
        for a, b in zip(map(len, map(str.split, first)), map(len, map(str.split, second)), strict=True)
    ]


def logprob(model, prompt, completion):
    logits = model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
    return [logits[len(prompt) - 1 + t, token].item() for t, token in enumerate(completion)]


def completion_ids(tokens):
    """Ids of a sample's tokens; a tiny model may sample the pad token, which no text shows."""
    special = {"<|pad|>": 0, "<|eos|>": EOS}
    return [special[name] if name in special else ids(name)[0] for name in map(str.strip, tokens)]


def test_held_out_pairs_share_their_prompt(inputs, tmp_path, monkeypatch):
    """The reward model reads chosen and rejected as branches of one row."""
    layouts, score = [], evaluation_results.score_completions
    monkeypatch.setattr(
        evaluation_results,
        "score_completions",
        lambda model, groups, budget: (layouts.append(model.layout), score(model, groups, budget))[1],
    )
    settings = evaluation_settings(judge="reward", samples=1)
    shared = settings.compute.model_copy(update={"layout": "auto"})
    evaluation.run(settings.model_copy(update={"compute": shared}), inputs, tmp_path, SilentObserver())
    assert layouts == [Layout.SHARED]


def test_perplexity_is_that_of_the_completions_under_sft(inputs, tmp_path):
    """At temperature 1, whether the KL was measured at that temperature or at another one."""
    model = AutoModelForCausalLM.from_pretrained(inputs["sft"] / "model").eval()
    for temperature in (1.0, 0.5):
        out = tmp_path / str(temperature)
        summary = evaluate(inputs, out, temperature=temperature, samples=4)
        samples = json.loads((out / "samples.json").read_text())
        for arm in ("sft/greedy", "policy/greedy", "policy/sampled"):
            written = [(ids(s["prompt"]), completion_ids(s["completions"][arm]["tokens"])) for s in samples]
            values = [value for prompt, completion in written for value in logprob(model, prompt, completion)]
            expected = math.exp(-sum(values) / len(values))
            assert summary[f"evaluation/{arm}/perplexity"] == pytest.approx(expected, rel=1e-4)


def test_further_judges_compare_everything_in_both_orders(inputs, tmp_path):
    judges = (f"pairwise:{__name__}:always_first", "brevity", "length", f"pairwise:{__name__}:opposite")
    summary = evaluate(inputs, tmp_path, judges=judges)
    rows = lines(tmp_path / "judgements.jsonl")
    assert {row["comparison"] for row in rows} == PAIRINGS
    assert len(rows) == 4 * len(PAIRINGS) * 4
    first = f"evaluation/judges/pairwise_{__name__}_always_first"
    for pairing in PAIRINGS:
        assert summary[f"{first}/{pairing}/win_rate"] == 0.5
        assert summary[f"{first}/{pairing}/first_preferred"] == 1.0
        longer, shorter = (summary[f"evaluation/judges/{name}/{pairing}/win_rate"] for name in ("length", "brevity"))
        assert longer + shorter == pytest.approx(1.0)
    assert -1.0 <= summary["evaluation/judges/brevity/kappa"] <= 1.0
    one = evaluate(inputs, tmp_path / "one", judges=("length",), judge_decoding="greedy")
    assert "evaluation/judges/length/policy/greedy/win_rate" in one
    assert "evaluation/judges/length/policy/sampled/win_rate" not in one


def test_the_policy_against_sft_is_judged_pair_by_pair(inputs, tmp_path):
    summary = evaluate(inputs, tmp_path)
    for mode in ("greedy", "sampled"):
        rewards = [
            (r[f"policy_{mode}_proxy_reward"], r[f"sft_{mode}_proxy_reward"])
            for r in lines(tmp_path / "completions.jsonl")
        ]
        expected = sum(0.5 + 0.5 * ((a > b) - (a < b)) for a, b in rewards) / len(rewards)
        assert summary[f"evaluation/policy_against_sft/{mode}/win_rate"] == expected


def test_several_completions_of_a_prompt_are_all_measured(inputs, tmp_path):
    one, three = (
        evaluate(inputs, tmp_path / "one"),
        evaluate(inputs, tmp_path / "three", completions=3, judges=("length",)),
    )
    name = "evaluation/policy/sampled/proxy_reward"
    assert one[name] != three[name]
    assert one["evaluation/policy/greedy/kl"] == three["evaluation/policy/greedy/kl"]
    rows = [row for row in lines(tmp_path / "three" / "judgements.jsonl") if row["comparison"] == "policy/sampled"]
    assert [row["prompt"] for row in rows] == [p for p in range(4) for _ in range(3)]


def test_a_language_model_judges_in_a_run_and_is_not_asked_twice(inputs, tmp_path):
    with ChatServer() as server:
        llm = LLM.model_copy(update={"base_url": server.url, "cache": str(tmp_path / "cache")})
        first = evaluate(inputs, tmp_path / "a", judges=("llm",), llm=llm, judge_decoding="sampled")
        asked = len(server.requests)
        again = evaluate(inputs, tmp_path / "b", judges=("llm",), llm=llm, judge_decoding="sampled")
        assert len(server.requests) == asked <= 3 * 4 * 2
    assert first == again
    assert first["evaluation/judges/llm/answers"] == asked
    assert (tmp_path / "a" / "evaluation.json").read_bytes() == (tmp_path / "b" / "evaluation.json").read_bytes()


def test_a_judge_that_cannot_be_is_refused_before_anything_is_sampled(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "assess", lambda *a, **k: pytest.fail("sampled"))
    with pytest.raises(ValueError, match="there is no judge 'nobody'"):
        evaluate(inputs, tmp_path, judges=("nobody",))


def test_samples_hold_every_token_with_its_log_ratio(inputs, tmp_path):
    evaluate(inputs, tmp_path, samples=3)
    samples, rows = json.loads((tmp_path / "samples.json").read_text()), lines(tmp_path / "completions.jsonl")
    policy, sft = (AutoModelForCausalLM.from_pretrained(inputs[name] / "model").eval() for name in ("policy", "sft"))
    assert len(samples) == 3
    for sample, row in zip(samples, rows, strict=False):
        for arm, found in sample["completions"].items():
            shown = "".join(found["tokens"]).replace("<|eos|>", "").replace("<|pad|>", "")
            assert shown.split() == row[arm.replace("/", "_")].split()
            both = [logprob(model, ids(row["prompt"]), completion_ids(found["tokens"])) for model in (policy, sft)]
            assert found["log_ratios"] == pytest.approx([a - b for a, b in zip(*both, strict=True)], abs=2e-3)


def test_the_reward_model_is_examined_on_held_out_pairs_and_figures_are_shown(inputs, tmp_path):
    seen = Figures()
    summary = evaluate(inputs, tmp_path, seen)
    assert summary["evaluation/reward_model/pairs"] == len(rows_of(inputs, "preferences", "test"))
    assert {"evaluation/reward_model/accuracy_low", "evaluation/reward_model/calibration_error"} <= set(summary)
    assert {"win_rates", "length", "proxy_reward", "calibration"} <= seen.names
    details = json.loads((tmp_path / "details.json").read_text())
    assert set(details["comparisons"]["reward"]) == PAIRINGS
    assert sum(row["share"] for row in details["calibration"]) == pytest.approx(1.0)
