"""Evaluation: SFT and optimised policy on the same held-out prompts, greedy and sampled."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn
from transformers import PreTrainedTokenizerBase

from rloo_core.data.tokens import token_ids
from rloo_core.evaluation.assessment import Assessment, Prompts, assess
from rloo_core.evaluation.comparisons import Comparison
from rloo_core.evaluation.figures import evaluation_figures, reward_against_kl
from rloo_core.evaluation.judges.base import Judge
from rloo_core.evaluation.judges.make import Means, make_judge
from rloo_core.evaluation.perplexity import perplexity, token_logprobs
from rloo_core.layout import Layout
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
    stage_layout,
    stage_policy,
    stage_tokenizer,
    use_threads,
)
from rloo_core.stages.evaluation_files import (
    comparison_details,
    completion_rows,
    judgement_rows,
    token_texts,
    write_json,
    write_lines,
)
from rloo_core.stages.evaluation_results import (
    Arms,
    best_of_n,
    further_judges,
    pairings,
    reward_model_record,
    scorecards,
    shown_text,
    win_rates,
)
from rloo_core.stages.rewards import RewardSource, stage_reward
from rloo_core.trainer import HISTORY, make_accelerator
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
    layout: Layout

    def judge_scores(self, assessment: Assessment) -> list[list[float]]:
        """Scores [P][K] of the judge: gold where it is known, else the reward model."""
        scores = assessment.proxy_reward if self.gold is None else assessment.gold_reward
        assert scores is not None
        return scores.tolist()

    def reference_texts(self) -> list[str] | None:
        """The references, where the prompts that are evaluated have them."""
        return None if self.reference_scores is None else [shown_text(row["reference"]) for row in self.prompts.rows]


def run(
    settings: EvaluationStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer
) -> dict[str, float]:
    """Compare both policies with the references and with each other; leaves the files of `evaluation_files`.

    Returns:
        evaluation/{sft,policy}/{greedy,sampled}/…  the scorecard of `evaluation.scorecard`, `perplexity` (of the
            completions under the SFT model, at temperature 1), and against the references `win_rate…`,
            `length_controlled_win_rate…`, `length_effect`, `ties`
        evaluation/policy_against_sft/{mode}/…      the same win rates of the policy against SFT
        evaluation/difference/{mode}/win_rate…      win rates against the references, policy - SFT, paired by prompt
        evaluation/sft/best_of_n/win_rate…          SFT's best sample by the reward
        evaluation/reward_model/…                   on held-out preferences
        evaluation/judges/{judge}/…                 by each further judge

        `kl` is the sampled log-ratio to the SFT model, nats a completion; of greedy completions it is the log-ratio
        along that one path, not an estimate of the KL. Without references in the test prompts, what needs them is
        left out.

    Raises:
        ValueError: If there are no test prompts, or a judge lacks what it needs; before anything is sampled.
        JudgeError: If a judge gives no answers. What it has answered is kept.
    """
    use_threads(settings.compute)
    tokenizer = stage_tokenizer(inputs)
    device = make_accelerator(settings.compute).device
    means = Means(
        settings.evaluation.llm,
        settings.model.chat_template,
        settings.compute.max_tokens_per_batch,
        device,
        observer.message,
    )
    judges = [make_judge(name, means) for name in settings.evaluation.judges]
    bench = _bench(settings, inputs, tokenizer, device, observer)
    if bench.reference_scores is None:
        observer.message("the test prompts have no `reference`: win rates are left out")
    compute = settings.compute
    models = {
        name: bench.reference_model if name == "sft" else stage_policy(inputs[name], tokenizer, compute, device)
        for name in POLICIES
    }
    total = len(POLICIES) * len(MODES)
    assessments: dict[tuple[str, str], Assessment] = {}
    for name in POLICIES:
        for mode in MODES:
            observer.progress(len(assessments), total, f"{name}, {mode}")
            assessments[name, mode] = _assess(bench, name, mode, models[name])
    observer.progress(total, total)
    summary, details, by_judge = _results(bench, assessments, judges)
    record, curve = reward_model_record(
        inputs, settings.model.chat_template, settings.compute, device, settings.evaluation.seed, observer
    )
    summary |= record
    rows = completion_rows(assessments, bench.prompts.rows, bench.reference_scores)
    observer.table("samples", rows[: settings.evaluation.samples])
    write_lines(out / "completions.jsonl", rows)
    write_lines(out / "judgements.jsonl", judgement_rows(by_judge))
    write_json(out / "details.json", details | {"calibration": curve})
    write_json(out / "samples.json", _samples(bench, assessments, models))
    write_json(out / "evaluation.json", summary)
    for title, figure in (evaluation_figures(summary, rows, curve) | _frontier(inputs["policy"])).items():
        observer.figure(title, figure)
    observer.metrics(0, summary)
    return summary


def _frontier(policy: Path) -> dict[str, Figure]:
    """Reward against KL over the policy's training, where it was measured more than once."""
    history = policy / HISTORY
    rows = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    figure = reward_against_kl(rows)
    return {} if figure is None else {"reward_against_kl": figure}


def _results(
    bench: Bench, assessments: Arms, judges: Sequence[Judge]
) -> tuple[dict[str, float], dict[str, Any], dict[str, dict[str, Comparison]]]:
    """The summary, details for the report, and the further judges' comparisons."""
    own = bench.settings.evaluation
    texts, scores = bench.reference_texts(), {key: bench.judge_scores(arm) for key, arm in assessments.items()}
    summary = {"evaluation/prompts": float(len(bench.prompts.ids))}
    summary |= scorecards(assessments, own.completions, texts) | _perplexities(bench, assessments)
    references = None
    if texts is not None and bench.reference_scores is not None:
        references = list(zip(texts, bench.reference_scores, strict=True))
    paired = pairings(assessments, scores, references, own.completions)
    compared = {pairing.name: pairing.by_scores(own.seed) for pairing in paired}
    summary |= win_rates(compared)
    if own.best_of >= 2 and bench.reference_scores is not None:
        best = best_of_n(assessments["sft", "sampled"], scores["sft", "sampled"], bench.reference_scores, own.seed)
        summary |= best
    asked = [p for p in paired if own.judge_decoding in (p.mode, "both")]
    judged, by_judge = further_judges(judges, asked, compared, bench.prompts, own.seed) if judges else ({}, {})
    name = "reward" if bench.gold is None else "gold"
    details = {judge: comparison_details(each) for judge, each in ({name: compared} | by_judge).items()}
    return summary | judged, {"judge": name, "comparisons": details}, by_judge


def _perplexities(bench: Bench, assessments: Arms) -> dict[str, float]:
    """Of each arm's completions under the SFT model: how far they are from what it would write."""
    count = bench.settings.evaluation.completions
    found = {}
    for (name, mode), arm in assessments.items():
        if arm.ref_logprob is not None and bench.settings.evaluation.temperature == 1.0:
            logprob, tokens = arm.ref_logprob[:, :count].sum().item(), arm.length[:, :count].sum().item()
            found[f"evaluation/{name}/{mode}/perplexity"] = math.exp(-logprob / tokens)
        else:
            pairs = [(i, ids) for i, group in enumerate(arm.ids) for ids in group[:count]]
            found[f"evaluation/{name}/{mode}/perplexity"] = perplexity(_logprobs(bench, bench.reference_model, pairs))
    return found


def _logprobs(bench: Bench, model: nn.Module, pairs: Sequence[tuple[int, Sequence[int]]]) -> list[list[float]]:
    """Log-probs of completions, each given with the index of its prompt."""
    prompts = [bench.prompts.ids[i] for i, _ in pairs]
    budget = bench.settings.compute.max_tokens_per_batch
    return token_logprobs(model, prompts, [ids for _, ids in pairs], budget, pad_id(bench.tokenizer))


def _samples(bench: Bench, assessments: Arms, models: Mapping[str, nn.Module]) -> list[dict[str, Any]]:
    """The first prompts with every policy's completion, token by token: how much likelier the policy finds it than SFT.

    Log-ratios are at temperature 1, log pi_policy - log pi_sft, also of SFT's own completions.
    """
    count = bench.settings.evaluation.samples
    rows = completion_rows(assessments, bench.prompts.rows[:count], bench.reference_scores)
    shown: list[dict[str, Any]] = [
        {"prompt": row["prompt"], "reference": row.get("reference"), "completions": {}} for row in rows
    ]
    for (name, mode), arm in assessments.items():
        pairs = [(i, group[0]) for i, group in enumerate(arm.ids[:count])]
        both = zip(*(_logprobs(bench, models[which], pairs) for which in ("policy", "sft")), strict=True)
        for (i, ids), (policy, sft) in zip(pairs, both, strict=True):
            prefix = f"{name}_{mode}_"
            shown[i]["completions"][f"{name}/{mode}"] = {
                "tokens": token_texts(bench.tokenizer, ids),
                "log_ratios": [round(a - b, 3) for a, b in zip(policy, sft, strict=True)],
                **{key.removeprefix(prefix): value for key, value in rows[i].items() if key.startswith(prefix)},
            }
    return shown


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
    reference_model = stage_policy(inputs["sft"], tokenizer, settings.compute, device)
    eos_ids = end_tokens(reference_model, tokenizer)
    source = RewardSource(inputs, tokenizer, eos_ids, settings.compute, lambda model: model.to(device), observer)
    proxy = stage_reward(settings.reward, source)
    gold = gold_reward(prompts, tokenizer, eos_ids) if own.judge != "reward" else None
    if gold is None and own.judge == "gold":
        raise ValueError("evaluation.judge=gold, but only data.source=synthetic has a gold reward; set judge=auto")
    chat = settings.model.chat_template
    (references,) = token_ids(inputs["data"], "prompts", "test", ["reference"], tokenizer, chat)
    written = [[references[i]] for i in chosen]
    scores = _reference_scores(prompts, written, gold or proxy, tokenizer) if judged else None
    layout = stage_layout(reference_model, settings.compute, observer)
    return Bench(settings, tokenizer, prompts, proxy, gold, scores, reference_model, layout)


def _reference_scores(
    prompts: Prompts, references: Sequence[Sequence[Sequence[int]]], judge: Reward, tokenizer: PreTrainedTokenizerBase
) -> list[float]:
    scores: list[float] = judge(CompletionGroups.from_ids(prompts.ids, references, pad_id(tokenizer)), prompts.rows)[
        :, 0
    ].tolist()
    return scores


def _assess(bench: Bench, name: str, mode: str, model: nn.Module) -> Assessment:
    own = bench.settings.evaluation
    temperature = 0.0 if mode == "greedy" else own.temperature
    many = 1 if mode == "greedy" else max(own.completions, own.best_of if name == "sft" else 1)
    return assess(
        model,
        None if name == "sft" else reference_logprobs(bench.reference_model, own.temperature, bench.layout),
        bench.prompts,
        bench.tokenizer,
        make_sampling(
            model,  # type: ignore[arg-type]
            bench.tokenizer,
            temperature=temperature,
            max_new_tokens=own.max_new_tokens,
            stop=own.stop,
            compute=bench.settings.compute,
            layout=bench.layout,
        ),
        samples=many,
        seed=own.seed,
        proxy=bench.proxy,
        gold=bench.gold,
        kl_temperature=own.temperature,
    )
