"""Each stage gives the right thing to the right place: real stages on tables and models of a few tokens."""

import json

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXModel,
)

from rloo_core.data.schema import SPLITS
from rloo_core.observer import SilentObserver
from rloo_core.rewards import ModelReward
from rloo_core.stages import common, evaluation, policy, reward_model, rewards, sft
from rloo_core.stages.common import steps_for
from tests.rloo_core.algorithms.composing import composed
from tests.rloo_core.stages.small import (
    EOS,
    RowsSeen,
    evaluation_settings,
    ids,
    policy_settings,
    reward_model_settings,
    rows_of,
    sft_settings,
    write_inputs,
    write_model,
)
from tests.rloo_core.tiny import VOCAB, tiny_tokenizer

calls: list[tuple[set[str], int]] = []


def no_reward(prompts, completions, split, **columns):
    """Worth nothing, and remembers the splits it saw and how many completions."""
    calls.append((set(split), len(completions)))
    return [0.0] * len(completions)


def counting_reward(prompts, completions, **columns):
    return [float(text.split().count("w5")) + 0.1 * len(text) for text in completions]


NOTHING, COUNTING = f"{__name__}:no_reward", f"{__name__}:counting_reward"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("stages"))


def train_policy(settings, inputs, out):
    """Metrics of every step; held-out ones begin at step 0."""
    policy.run(settings, inputs, out, SilentObserver())
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


# Steps


@pytest.mark.parametrize(
    ("epochs", "rows", "batch", "steps"), [(1.0, 8, 4, 2), (1.0, 9, 4, 3), (2.0, 9, 4, 5), (0.1, 9, 4, 1)]
)
def test_every_row_is_seen_in_every_epoch(epochs, rows, batch, steps):
    assert steps_for(epochs, rows, batch) == steps


# SFT


def test_sft_sees_whole_demonstrations_of_train_and_validation_and_nothing_else(inputs, tmp_path):
    with RowsSeen() as seen:
        sft.run(sft_settings(inputs["sft"] / "model"), inputs, tmp_path, SilentObserver())
    rows = [row for split in ("train", "validation") for row in rows_of(inputs, "demonstrations", split)]
    assert seen == {(*ids(row["prompt"]), *ids(row["completion"]), EOS) for row in rows}


# Reward model


def test_the_reward_model_sees_whole_pairs_of_train_and_validation_and_nothing_else(inputs, tmp_path):
    with RowsSeen() as seen:
        reward_model.run(reward_model_settings(), inputs, tmp_path, SilentObserver())
    rows = [row for split in ("train", "validation") for row in rows_of(inputs, "preferences", split)]
    assert seen == {(*ids(row["prompt"]), *ids(row[name]), EOS) for row in rows for name in ("chosen", "rejected")}


@pytest.mark.parametrize("rank", [0, 4])
def test_chosen_score_higher_than_rejected_and_references_zero_on_average(inputs, tmp_path, rank):
    settings = reward_model_settings(rank, epochs=15.0, learning_rate=0.01, center=True, eval_every=0)
    summary = reward_model.run(settings, inputs, tmp_path, SilentObserver())
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()

    @torch.no_grad()
    def rewards(table, split, column):
        """Plain `transformers` on prompt + completion + EOS, less the offset: one row at a time."""
        rows = [[*ids(row["prompt"]), *ids(row[column]), EOS] for row in rows_of(inputs, table, split)]
        return torch.cat([model(torch.tensor([row])).logits[:, 0] for row in rows]) - model.config.reward_offset

    assert (rewards("preferences", "train", "chosen") > rewards("preferences", "train", "rejected") + 1).all()
    assert abs(summary["reward/offset"]) > 0.1  # or its sign would not matter
    assert_close(rewards("prompts", "train", "reference").mean(), torch.tensor(0.0), atol=1e-5, rtol=0)


# Policy


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("layout", ["padded", "shared"])
def test_the_reference_is_the_sft_model_at_the_sampling_temperature_and_stays(inputs, tmp_path, rank, layout):
    """KL is exactly 0 before the first update, and not after: a reference that trains along would keep it at 0."""
    settings = policy_settings(rank, layout, learning_rate=0.1, reward=COUNTING, temperature=0.7, steps=3)
    history = train_policy(settings, inputs, tmp_path)
    assert history[0]["validation/kl"] == 0.0
    assert history[1]["kl/mean"] == history[1]["kl/k3_mean"] == 0.0
    assert history[1]["validation/kl"] != 0.0
    assert min(row["kl/k3_mean"] for row in history[2:]) > 1e-3


@torch.no_grad()
def log_ratios(policy, reference, prompts, completions, temperature):
    """log policy(completion) - log reference(completion) of each, by plain `transformers`, one at a time."""
    models = [AutoModelForCausalLM.from_pretrained(directory / "model").eval() for directory in (policy, reference)]
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        logits = [model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] for model in models]
        ours, theirs = ((part / temperature).log_softmax(-1) for part in logits)
        found.append(sum((ours - theirs)[t, token].item() for t, token in enumerate(completion)))
    return found


def test_the_kl_measured_is_that_of_the_weights_saved_to_the_weights_given(inputs, tmp_path, monkeypatch):
    """The last held-out KL again, from the two directories and the definition, one completion at a time."""
    kept = []
    real = policy.assess
    monkeypatch.setattr(policy, "assess", lambda *a, **k: kept.append(real(*a, **k)) or kept[-1])
    history = train_policy(policy_settings(learning_rate=0.03, reward=COUNTING), inputs, tmp_path)
    prompts = [ids(row["prompt"]) for row in rows_of(inputs, "prompts", "validation")[:3]]
    ended = kept[-1].finished[:, 0].tolist()
    completions = [ids(text) + [EOS] * int(end) for (text,), end in zip(kept[-1].texts, ended, strict=True)]
    ratios = log_ratios(tmp_path, inputs["sft"], prompts, completions, temperature=0.7)
    assert sum(map(abs, ratios)) > 0.1
    assert history[-1]["validation/kl"] == pytest.approx(sum(ratios) / 3, abs=1e-4)


def test_dropout_of_the_sft_model_does_not_show_as_kl(inputs, tmp_path):
    """GPT-2 comes with dropout 0.1; a policy that trains with it is not at KL 0 before its first update."""
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=1
    )
    gpt2 = write_model(GPT2LMHeadModel(config), tmp_path / "sft")
    (tmp_path / "out").mkdir()
    settings = policy_settings(reward=NOTHING, steps=1)
    history = train_policy(settings, inputs | {"sft": gpt2}, tmp_path / "out")
    assert history[0]["validation/kl"] == history[1]["kl/mean"] == history[1]["kl/k3_mean"] == 0.0


def test_it_trains_on_whole_train_prompts_and_is_watched_on_validation_prompts(inputs, tmp_path):
    calls.clear()
    settings = policy_settings(reward=NOTHING)
    with RowsSeen() as seen:
        train_policy(settings, inputs, tmp_path)
    training, watching = ({"train"}, 4), ({"validation"}, 3)
    assert calls == [watching, training, watching, training, watching]
    prompts = {split: [tuple(ids(row["prompt"])) for row in rows_of(inputs, "prompts", split)] for split in SPLITS}
    assert {*prompts["train"], *prompts["validation"][:3]} <= seen
    assert not {*prompts["validation"][3:], *prompts["test"]} & seen


def test_a_completion_cut_off_pays_the_penalty_of_the_settings(inputs, tmp_path):
    settings = policy_settings(reward=NOTHING, missing_eos_penalty=2.5, kl_coef=0.0)
    for row in train_policy(settings, inputs, tmp_path)[1:]:
        assert row["completion/truncated_frac"] > 0
        assert row["reward/mean"] == 0.0  # metrics show the raw reward
        assert row["shaped_reward/mean"] == pytest.approx(-2.5 * row["completion/truncated_frac"])


def test_the_kl_costs_what_the_settings_say(inputs, tmp_path):
    settings = policy_settings(reward=COUNTING, kl_coef=0.5, learning_rate=0.1, steps=3)
    for row in train_policy(settings, inputs, tmp_path)[2:]:
        assert abs(row["kl/mean"]) > 0.01
        assert row["shaped_reward/mean"] == pytest.approx(row["reward/mean"] - 0.5 * row["kl/mean"], abs=1e-5)


# Evaluation


def brevity(prompts, completions, **columns):
    """A gold reward a test can recompute: minus the number of words."""
    return [-float(len(text.split())) for text in completions]


def evaluate(inputs, out, **changes):
    summary = evaluation.run(evaluation_settings(**changes), inputs, out, SilentObserver())
    return summary, [json.loads(line) for line in (out / "completions.jsonl").read_text().splitlines()]


def greedy(directory, row):
    """The completion of `transformers`' own `generate`."""
    model = AutoModelForCausalLM.from_pretrained(directory / "model").eval()
    prompt = torch.tensor([ids(row["prompt"])])
    output = model.generate(prompt, do_sample=False, max_new_tokens=6, eos_token_id=EOS, pad_token_id=0)
    return tiny_tokenizer().decode([token for token in output[0, prompt.shape[1] :] if token not in (EOS, 0)])


def test_both_policies_write_greedily_on_the_test_prompts(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("rloo_core.stages.common.gold_rewards", brevity)
    _, rows = evaluate(inputs, tmp_path)
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in rows_of(inputs, "prompts", "test")]
    for name in ("sft", "policy"):
        assert [row[f"{name}_greedy"] for row in rows] == [greedy(inputs[name], row) for row in rows]
        assert [row[f"{name}_greedy"] for row in rows] != [row[f"{name}_sampled"] for row in rows]


def share_of_wins(rows, key, judge):
    pairs = [(row[f"{key}_{judge}_reward"], row["reference_score"]) for row in rows]
    return sum(1.0 if ours > theirs else 0.5 if ours == theirs else 0.0 for ours, theirs in pairs) / len(pairs)


@pytest.mark.parametrize(("judge", "used"), [("auto", "gold"), ("gold", "gold"), ("reward", "proxy")])
def test_win_rates_are_those_of_the_judge_and_the_difference_is_policy_minus_sft(
    inputs, tmp_path, monkeypatch, judge, used
):
    monkeypatch.setattr("rloo_core.stages.common.gold_rewards", brevity)
    summary, rows = evaluate(inputs, tmp_path, judge=judge)
    references = [row["reference"] for row in rows]
    if used == "gold":
        expected = brevity(None, references)
    else:
        model = AutoModelForSequenceClassification.from_pretrained(inputs["reward_model"] / "model").eval()
        whole = [torch.tensor([[*ids(row["prompt"]), *ids(row["reference"]), EOS]]) for row in rows]
        expected = [model(row).logits.item() for row in whole]
    assert [row["reference_score"] for row in rows] == pytest.approx(expected, abs=1e-3)
    differences = []
    for mode in ("greedy", "sampled"):
        for name in ("sft", "policy"):
            found = summary[f"evaluation/{name}/{mode}/win_rate"]
            assert found == share_of_wins(rows, f"{name}_{mode}", used)
        difference = summary[f"evaluation/policy/{mode}/win_rate"] - summary[f"evaluation/sft/{mode}/win_rate"]
        assert summary[f"evaluation/difference/{mode}/win_rate"] == pytest.approx(difference)
        differences.append(difference)
    assert any(differences)


def test_a_stop_string_ends_completions(inputs, tmp_path):
    summary, _ = evaluate(inputs, tmp_path, judge="reward", stop=("w",))
    for name in ("sft", "policy"):
        assert summary[f"evaluation/{name}/sampled/length"] == summary[f"evaluation/{name}/greedy/length"] == 1.0


def test_best_of_n_is_the_one_the_reward_model_prefers(inputs, tmp_path):
    """By the reward model's own judgement the best of eight cannot be worse than the first, and here it is better."""
    summary, _ = evaluate(inputs, tmp_path, judge="reward", best_of=8)
    single = summary["evaluation/sft/sampled/win_rate"]
    assert summary["evaluation/sft/best_of_n/win_rate"] > single


def test_the_sft_model_has_kl_zero_and_the_policy_its_log_ratio_at_the_sampling_temperature(inputs, tmp_path):
    summary, rows = evaluate(inputs, tmp_path, judge="reward", seed=1)
    assert summary["evaluation/sft/sampled/kl"] == 0.0
    prompts, texts = ([ids(row[name]) for row in rows] for name in ("prompt", "policy_sampled"))
    completions = [text if len(text) == 6 else [*text, EOS] for text in texts]  # shorter than allowed: it ended
    assert sum(map(len, completions)) / 4 == summary["evaluation/policy/sampled/length"]  # no pad among the samples
    ratios = log_ratios(inputs["policy"], inputs["sft"], prompts, completions, temperature=0.8)
    assert summary["evaluation/policy/sampled/kl"] == pytest.approx(sum(ratios) / len(ratios), abs=1e-4)


def test_without_references_win_rates_are_left_out_and_the_rest_stays(inputs, tmp_path, monkeypatch):
    read = common.read_table
    bare = [{**row, "reference": None} for row in read(inputs["data"], "prompts", "test")]
    monkeypatch.setattr(common, "read_table", lambda *key: bare if key[1:] == ("prompts", "test") else read(*key))
    summary, rows = evaluate(inputs, tmp_path, judge="reward")
    against_references = [name for name in summary if "win_rate" in name and "against_sft" not in name]
    assert against_references == []
    assert {"evaluation/policy/sampled/proxy_reward", "evaluation/policy/sampled/kl"} <= set(summary)
    assert len(rows) == summary["evaluation/prompts"] == len(bare)


def test_the_reward_model_is_laid_out_as_its_own_architecture_allows(inputs, tmp_path, monkeypatch):
    """The policy shares prompts; a reward model that may not, a sliding window's for instance, is asked for itself."""
    asked = []

    def layout_of(decoder, compute, observer):
        asked.append(decoder)
        return common.Layout.SHARED if len(asked) == 1 else common.Layout.PADDED

    used = []
    monkeypatch.setattr(policy, "stage_layout", layout_of)
    monkeypatch.setattr(rewards, "stage_layout", layout_of)
    score = ModelReward.__call__
    monkeypatch.setattr(
        ModelReward, "__call__", lambda self, *batch: (used.append(self.model.layout), score(self, *batch))[1]
    )
    policy.run(policy_settings(), inputs, tmp_path, SilentObserver())
    assert len(asked) == 2
    assert set(used) == {common.Layout.PADDED}


def test_sampling_in_a_type_that_the_processor_imitates_is_said(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("rloo_core.cpu_products._multiplies_bfloat16", lambda: False)
    settings = policy_settings(reward=NOTHING)
    compute = settings.compute.model_copy(update={"sampling_precision": "bfloat16"})
    observer, told = SilentObserver(), []
    observer.message = told.append
    policy.run(settings.model_copy(update={"compute": compute}), inputs, tmp_path, observer)
    assert ["sampling_precision=bfloat16 than with float32" in text for text in told] == [True]


@pytest.mark.parametrize("stage", ["sft", "reward_model", "policy", "critic", "dpo", "evaluation"])
def test_every_model_of_a_stage_computes_attention_as_asked_for(inputs, tmp_path, stage):
    """The policy, its reference, the reward model, the critic: whatever decoder is called."""
    run, settings = {
        "sft": (sft.run, sft_settings(inputs["sft"] / "model")),
        "reward_model": (reward_model.run, reward_model_settings()),
        "policy": (policy.run, policy_settings(layout="shared", steps=1, kl_coef=0.1)),
        "critic": (policy.run, policy_settings().model_copy(update={"algorithm": composed("ppo", steps=1)})),
        "dpo": (policy.run, policy_settings().model_copy(update={"algorithm": composed("dpo", steps=1)})),
        "evaluation": (evaluation.run, evaluation_settings(judge="reward")),
    }[stage]
    eager = settings.compute.model_copy(update={"attention": "eager"})
    seen = set()

    def look(module, arguments):
        if isinstance(module, GPTNeoXModel):
            seen.add(module.config._attn_implementation)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    run(settings.model_copy(update={"compute": eager}), inputs, tmp_path, SilentObserver())
    handle.remove()
    assert seen == {"eager"}


# Without a reward model


def test_a_run_that_needs_no_reward_model_trains_none_and_reports_the_reward_it_used(inputs, tmp_path):
    settings = reward_model_settings(enabled=False)
    (tmp_path / "reward_model").mkdir()
    assert reward_model.run(settings, inputs, tmp_path / "reward_model", SilentObserver()) == {}
    assert list((tmp_path / "reward_model").iterdir())  # a stage that leaves nothing has failed
    without = inputs | {"reward_model": tmp_path / "reward_model"}
    (tmp_path / "policy").mkdir()
    train_policy(policy_settings(reward=COUNTING, steps=1), without, tmp_path / "policy")
    with pytest.raises(ValueError, match="this run has no reward model"):
        policy.run(policy_settings(steps=1), without, tmp_path / "policy", SilentObserver())
