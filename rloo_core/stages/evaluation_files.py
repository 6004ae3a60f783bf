"""The files that the evaluation stage leaves, from which the report is made.

completions.jsonl   a row a prompt: prompt, reference, each policy's first completion and its measures
judgements.jsonl    a row a pair and further judge: both verdicts, seen from A
details.json        comparisons by length, calibration curve
samples.json        a few prompts with their completions, token by token
evaluation.json     the summary
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rloo_core.evaluation.comparisons import Comparison
from rloo_core.stages.evaluation_results import Arms, shown_text


def completion_rows(
    arms: Arms, prompts: Sequence[Mapping[str, Any]], reference_scores: Sequence[float] | None
) -> list[dict[str, Any]]:
    """One row a prompt: prompt, reference, and each policy's first completion with its measures."""
    rows: list[dict[str, Any]] = []
    for i, prompt in enumerate(prompts):
        row: dict[str, Any] = {"prompt": shown_text(prompt["prompt"])}
        if reference_scores is not None:
            row["reference"] = shown_text(prompt["reference"])
            row["reference_score"] = round(reference_scores[i], 4)
        for (name, mode), arm in arms.items():
            row[f"{name}_{mode}"] = arm.texts[i][0]
            measures = {"proxy_reward": arm.proxy_reward, "gold_reward": arm.gold_reward, "kl": arm.kl}
            for measure, values in measures.items():
                if values is not None:
                    row[f"{name}_{mode}_{measure}"] = round(values[i, 0].item(), 4)
            row[f"{name}_{mode}_length"] = int(arm.length[i, 0])
        rows.append(row)
    return rows


def comparison_details(compared: Mapping[str, Comparison]) -> dict[str, dict[str, Any]]:
    """Each comparison's summary, and its win rates by length."""
    return {
        name: {
            **comparison.summary(),
            "by_length": [
                {
                    "low": bin.low,
                    "high": None if math.isinf(bin.high) else bin.high,
                    "compared": bin.compared,
                    **({} if bin.rate is None else bin.rate.named("win_rate")),
                }
                for bin in comparison.by_length()
            ],
        }
        for name, comparison in compared.items()
    }


def judgement_rows(by_judge: Mapping[str, Mapping[str, Comparison]]) -> list[dict[str, Any]]:
    """Every verdict of the further judges."""
    return [
        {"judge": judge, "comparison": name, "prompt": prompt, "a_first": given.a_first, "b_first": given.b_first}
        for judge, compared in by_judge.items()
        for name, comparison in compared.items()
        for prompt, given in zip(comparison.prompts, comparison.judgements, strict=True)
    ]


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The piece of text that each token adds; together they are the decoded text."""
    whole = [
        str(tokenizer.decode(list(ids[:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False))
        for end in range(len(ids) + 1)
    ]
    return [after[len(before) :] for before, after in pairwise(whole)]


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write JSON."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
