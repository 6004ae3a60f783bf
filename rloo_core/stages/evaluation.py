"""Evaluation: SFT and optimised policy on the same held-out prompts, greedy and sampled."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from rloo_core.evaluation.assessment import Assessment, Prompts, assess, means
from rloo_core.evaluation.intervals import Estimate, paired_difference, win_rate, wins
from rloo_core.logprobs import reference_logprobs
from rloo_core.observer import Observer
from rloo_core.rewards import Reward
from rloo_core.settings import EvaluationStageSettings
from rloo_core.stages.common import (
    end_tokens,
    gold_reward,
    make_sampling,
    pad_id,
    prompts_of,
    stage_policy,
    stage_tokenizer,
    use_threads,
)
from rloo_core.stages.rewards import RewardSource, stage_reward
from rloo_core.tokenization import encode_completion
from rloo_core.trainer import make_accelerator
from rloo_core.types import CompletionGroups

POLICIES = ("sft", "policy")
MODES = ("greedy", "sampled")


@dataclass(frozen=True)
class Bench:
    """What is the same for every policy: prompts, references and their scores, rewards, settings."""

    settings: EvaluationStageSettings
    tokenizer: PreTrainedTokenizerBase
    prompts: Prompts
    proxy: Reward
    gold: Reward | None
    reference_scores: list[float] | None
    reference_model: nn.Module

    def judge_scores(self, assessment: Assessment) -> list[list[float]]:
        """Scores [P][K] of the judge: gold where it is known, else the reward model."""
        scores = assessment.proxy_reward if self.gold is None else assessment.gold_reward
        assert scores is not None
        return scores.tolist()


def run(
    settings: EvaluationStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer
) -> dict[str, float]:
    """Compare both policies with the references; leaves `completions.jsonl` and `evaluation.json`.

    Returns:
        `evaluation/{sft,policy}/{greedy,sampled}/{win_rate,win_rate_low,win_rate_high,proxy_reward,gold_reward,kl,
        length,finished}`, `evaluation/difference/{greedy,sampled}/win_rate…` (policy - SFT, paired by prompt) and
        `evaluation/sft/best_of_n/…`. `kl` is the sampled log-ratio to the SFT model, nats a completion; of greedy
        completions it is the log-ratio along that one path, not an estimate of the KL. Where the test prompts have no
        references, win rates are left out.
    """
    use_threads(settings.compute)
    tokenizer = stage_tokenizer(inputs)
    device = make_accelerator(settings.compute).device
    bench = _bench(settings, inputs, tokenizer, device, observer)
    if bench.reference_scores is None:
        observer.message("the test prompts have no `reference`: win rates are left out")
    total = len(POLICIES) * len(MODES)
    assessments: dict[tuple[str, str], Assessment] = {}
    for name in POLICIES:
        model = bench.reference_model if name == "sft" else stage_policy(inputs[name], tokenizer, device)
        for mode in MODES:
            done = len(assessments)
            observer.progress(done, total, f"{name}, {mode}")
            assessments[name, mode] = _assess(bench, name, mode, model)
    observer.progress(total, total)
    summary: dict[str, float] = {"evaluation/prompts": float(len(bench.prompts.ids))}
    for key, assessment in assessments.items():
        prefix = "evaluation/" + "/".join(key)
        measures = {"kl": 0.0} | means(assessment.first())  # the SFT model is the reference, so its KL is not measured
        summary |= {f"{prefix}/{name}": value for name, value in measures.items()}
    if bench.reference_scores is not None:
        summary |= _win_rates(bench, assessments, bench.reference_scores)
    rows = _rows(bench, assessments)
    observer.table("samples", rows[: settings.evaluation.samples])
    (out / "completions.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    (out / "evaluation.json").write_text(json.dumps(summary, indent=1))
    observer.metrics(0, summary)
    return summary


def _bench(
    settings: EvaluationStageSettings,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    observer: Observer,
) -> Bench:
    own = settings.evaluation
    every = prompts_of(inputs, "test", tokenizer, settings.model.chat_template)
    having = [i for i, row in enumerate(every.rows) if row.get("reference")]
    judged = len(having) >= 2
    chosen = (having if judged else range(len(every.rows)))[: own.prompts]
    if len(chosen) == 0:
        raise ValueError("there are no test prompts to evaluate on; raise data.test_fraction, or bring more rows")
    prompts = Prompts([every.ids[i] for i in chosen], [every.rows[i] for i in chosen])
    reference_model = stage_policy(inputs["sft"], tokenizer, device)
    eos_ids = end_tokens(reference_model, tokenizer)
    source = RewardSource(inputs, tokenizer, eos_ids, settings.compute, lambda model: model.to(device), observer)
    proxy = stage_reward(settings.reward, source)
    gold = gold_reward(prompts, tokenizer, eos_ids) if own.judge != "reward" else None
    if gold is None and own.judge == "gold":
        raise ValueError("evaluation.judge=gold, but only data.source=synthetic has a gold reward; set judge=auto")
    scores = _reference_scores(prompts, gold or proxy, tokenizer) if judged else None
    return Bench(settings, tokenizer, prompts, proxy, gold, scores, reference_model)


def _reference_scores(prompts: Prompts, judge: Reward, tokenizer: PreTrainedTokenizerBase) -> list[float]:
    references = [[encode_completion(tokenizer, row["reference"])] for row in prompts.rows]
    scores: list[float] = judge(CompletionGroups.from_ids(prompts.ids, references, pad_id(tokenizer)), prompts.rows)[
        :, 0
    ].tolist()
    return scores


def _assess(bench: Bench, name: str, mode: str, model: nn.Module) -> Assessment:
    own = bench.settings.evaluation
    temperature = 0.0 if mode == "greedy" else own.temperature
    many = own.best_of if (name, mode) == ("sft", "sampled") else 1
    return assess(
        model,
        None if name == "sft" else reference_logprobs(bench.reference_model, own.temperature),
        bench.prompts,
        bench.tokenizer,
        make_sampling(
            model,  # type: ignore[arg-type]
            bench.tokenizer,
            temperature=temperature,
            max_new_tokens=own.max_new_tokens,
            compute=bench.settings.compute,
        ),
        samples=max(1, many),
        seed=own.seed,
        proxy=bench.proxy,
        gold=bench.gold,
        kl_temperature=own.temperature,
    )


def _win_rates(
    bench: Bench, assessments: Mapping[tuple[str, str], Assessment], reference_scores: list[float]
) -> dict[str, float]:
    """Win rates of each prompt's first completion against its reference, and their difference."""
    outcomes = {
        key: wins([scores[0] for scores in bench.judge_scores(assessment)], reference_scores)
        for key, assessment in assessments.items()
    }
    summary: dict[str, float] = {}
    for key, outcome in outcomes.items():
        summary |= _named(f"evaluation/{'/'.join(key)}/win_rate", win_rate(outcome))
    for mode in MODES:
        value, low, high = paired_difference(outcomes["policy", mode], outcomes["sft", mode])
        within = Estimate(value, max(low, -1.0), min(high, 1.0))  # t intervals of few prompts know no bounds
        summary |= _named(f"evaluation/difference/{mode}/win_rate", within)
    return summary | _best_of_n(bench, assessments["sft", "sampled"], reference_scores)


def _best_of_n(bench: Bench, assessment: Assessment, reference_scores: list[float]) -> dict[str, float]:
    """Win rate of the completion that the reward model prefers among N of the SFT model."""
    if bench.settings.evaluation.best_of < 2:
        return {}
    best = assessment.proxy_reward.argmax(dim=1).tolist()
    scores = [row[k] for row, k in zip(bench.judge_scores(assessment), best, strict=True)]
    return _named("evaluation/sft/best_of_n/win_rate", win_rate(wins(scores, reference_scores)))


def _named(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _rows(bench: Bench, assessments: Mapping[tuple[str, str], Assessment]) -> list[dict[str, object]]:
    """One row a prompt: prompt, reference, and each policy's completion with its rewards."""
    rows: list[dict[str, object]] = []
    for i, prompt in enumerate(bench.prompts.rows):
        row: dict[str, object] = {"prompt": _text(prompt["prompt"])}
        if bench.reference_scores is not None:
            row["reference"] = _text(prompt["reference"])
            row["reference_score"] = round(bench.reference_scores[i], 4)
        for (name, mode), assessment in assessments.items():
            row[f"{name}_{mode}"] = assessment.texts[i][0]
            row[f"{name}_{mode}_proxy_reward"] = round(assessment.proxy_reward[i, 0].item(), 4)
            if assessment.gold_reward is not None:
                row[f"{name}_{mode}_gold_reward"] = round(assessment.gold_reward[i, 0].item(), 4)
        rows.append(row)
    return rows


def _text(value: str | Sequence[Mapping[str, str]]) -> str:
    """A text, or chat messages as lines."""
    return value if isinstance(value, str) else "\n".join(f"{m['role']}: {m['content']}" for m in value)
