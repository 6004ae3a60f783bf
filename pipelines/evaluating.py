"""`rloo evaluate`: models write on the same prompts, outside of any run, and are compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipelines.config_errors import ConfigError
from pipelines.judging import agreement_rows, forecast_lines, read_completions
from pipelines.judging import rate_rows as duel_rates
from pipelines.pictures import Drawing
from pipelines.report_page import Page, Picture, Section, number, render, table_of
from pipelines.store import Store
from rloo_core.attention import use_attention
from rloo_core.data.tables import read_table
from rloo_core.evaluation.assessment import Assessment, Prompts, assess, means
from rloo_core.evaluation.diversity import equal_length
from rloo_core.evaluation.duels import Duel, Pairs, duel, pair_up
from rloo_core.evaluation.judges.make import Means, make_judge
from rloo_core.evaluation.overlap import mean_rouge
from rloo_core.evaluation.perplexity import perplexity, token_logprobs
from rloo_core.evaluation.scorecard import text_measures
from rloo_core.layout import Layout, tried_layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.models import load_causal_lm
from rloo_core.settings import ComputeSettings, ExperimentSettings
from rloo_core.stages.common import check_context, make_sampling, pad_id, use_threads
from rloo_core.stages.evaluation_files import write_json, write_lines
from rloo_core.stages.evaluation_results import shown_text
from rloo_core.tokenization import encode_completion, encode_prompt, ensure_pad_token, load_tokenizer, same_tokens
from rloo_core.types import CompletionGroups

MEASURED = ("length", "finished", "kl", "kl_k3")


@dataclass(frozen=True)
class Loaded:
    """A model with its own tokenizer, and the layout that was tried on it."""

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase
    layout: Layout


@dataclass(frozen=True)
class Written:
    """What a model wrote: rows with prompt, completion and the prompt's columns, and measures."""

    name: str
    rows: list[dict[str, Any]]
    measures: dict[str, float]


@dataclass(frozen=True)
class Evaluation:
    """All models' completions, and their duels: with the references, and with the first model."""

    models: list[Written]
    duels: dict[str, tuple[Pairs, Duel]]


def evaluate(
    settings: ExperimentSettings,
    names: Sequence[str],
    prompts: Path | None,
    judges: Sequence[str],
    decoding: str,
    parts: Means,
    dry_run: bool = False,
) -> Evaluation | None:
    """Let every model write, and compare it with the references and with the first model.

    Args:
        settings: `evaluation` says how many prompts, at which temperature and length; `paths.root` where runs are.
        names: Directories or registered models.
        prompts: A file of prompts; None takes the test prompts of the newest data stage.
        judges: Names of judges; none chooses gold where it is known, else rouge, else length.
        decoding: "greedy" or "sampled".
        parts: What judges are made from.
        dry_run: Write, but only say what judging would cost.

    Returns:
        None for a dry run.

    Raises:
        ConfigError: If a model or the prompts are not there.
        ValueError: If a judge is not there, or a model cannot read the prompts.
    """
    use_threads(settings.compute)
    rows = _rows(settings, prompts)
    referenced = all(row.get("reference") for row in rows)
    fitting = "gold" if all("facts" in row for row in rows) else "rouge" if referenced else "length"
    made = [make_judge(name, parts) for name in dict.fromkeys(judges or [fitting])]
    directories = [_directory(settings, name) for name in names]
    first: Loaded | None = None
    assessed: list[tuple[str, Assessment, dict[str, float]]] = []
    for name, directory in zip(names, directories, strict=True):
        loaded = _loaded(name, directory, settings.compute, parts)
        first = first or loaded
        assessed.append((name, *_written(loaded, first, rows, settings, decoding)))
    written = _with_texts(assessed, rows, referenced)
    pairs = _pairs(written, rows if referenced else [])
    if dry_run:
        for title, each in pairs.items():
            for line in forecast_lines(made, each):
                parts.say(f"{title}: {line}")
        return None
    seed = settings.evaluation.seed
    return Evaluation(written, {title: (each, duel(each, made, seed=seed)) for title, each in pairs.items()})


def keep(out: Path, result: Evaluation) -> None:
    """Write each model's completions, results.json and report.html; two files of completions go into `rloo judge`."""
    out.mkdir(parents=True, exist_ok=True)
    for i, written in enumerate(result.models, start=1):
        write_lines(out / f"completions-{i}.jsonl", written.rows)
    write_json(out / "results.json", json.loads(results_json(result)))
    (out / "report.html").write_text(render(evaluation_page(result)), encoding="utf-8")


def results_json(result: Evaluation) -> str:
    """All numbers as JSON."""
    models = {f"{i}": {"name": w.name, **w.measures} for i, w in enumerate(result.models, start=1)}
    return json.dumps({"models": models, "duels": {t: d.summary() for t, (_, d) in result.duels.items()}}, indent=1)


def measure_rows(result: Evaluation) -> list[dict[str, Any]]:
    """A row a measure, a column a model."""
    names = list(dict.fromkeys(name for written in result.models for name in written.measures))
    return [
        {"measure": name.replace("_", " ")}
        | {f"{i}. {w.name}": number(w.measures.get(name), 3) for i, w in enumerate(result.models, start=1)}
        for name in names
    ]


def rate_rows(result: Evaluation) -> list[dict[str, Any]]:
    """A row a duel and judge."""
    return [{"comparison": title} | row for title, (_, each) in result.duels.items() for row in duel_rates(each)]


def evaluation_page(result: Evaluation) -> Page:
    """The report of an evaluation outside of a run."""
    bars = []
    for title, (_, each) in result.duels.items():
        for judge, comparison in each.comparisons.items():
            found = comparison.summary()
            if "win_rate" in found:
                value, low, high = (100 * found[f"win_rate{end}"] for end in ("", "_low", "_high"))
                bars.append({"label": f"{title}, {judge}", "value": value, "low": low, "high": high})
    picture = Picture(
        "Win rates", "Of the one that is named first.", Drawing("win_rates", [bars]), table_of("Win rates, %", bars, 1)
    )
    agreed = [{"comparison": t} | row for t, (_, d) in result.duels.items() for row in agreement_rows(d)]
    sections = [
        Section("Models", tables=[table_of("Measures of the completions", measure_rows(result))]),
        Section("Comparisons", tables=[table_of("Win rates", rate_rows(result))], pictures=[picture] if bars else []),
        *([Section("Agreement", tables=[table_of("Of every two judges", agreed)])] if agreed else []),
    ]
    names = ", ".join(f"{i}. {written.name}" for i, written in enumerate(result.models, start=1))
    lead = f"{names}. {len(result.models[0].rows)} completions each; intervals are 95 %, from a bootstrap over prompts."
    return Page("Evaluation of models", [lead], sections)


def _rows(settings: ExperimentSettings, prompts: Path | None) -> list[dict[str, Any]]:
    """Prompts to write on; those with a reference, where any has one."""
    if prompts is not None:
        rows = read_completions(prompts, {}, needed=("prompt",))
    else:
        store = Store(settings.paths.root)
        found = store.manifests("data")
        if not found:
            raise ConfigError(
                f"there is no run in {settings.paths.root} whose test prompts could be used; give --prompts FILE, or "
                f"another paths.root=..."
            )
        rows = read_table(store.path("data", found[0].fingerprint), "prompts", "test")
    chosen = [row for row in rows if row.get("reference")] or rows
    if not chosen:
        raise ConfigError("there are no prompts to write on; give --prompts FILE")
    return [dict(row) for row in chosen[: settings.evaluation.prompts]]


def _directory(settings: ExperimentSettings, name: str) -> Path:
    if (Path(name) / "config.json").is_file():
        return Path(name)
    from pipelines.tracking.registered import registered_model

    directory = registered_model(settings, name)
    if directory is None:
        raise ConfigError(
            f"{name} is neither a Hugging Face directory (with config.json) nor a registered model: NAME/VERSION or "
            f"NAME@ALIAS"
        )
    return directory


def _loaded(name: str, directory: Path, compute: ComputeSettings, parts: Means) -> Loaded:
    tokenizer = load_tokenizer(str(directory))
    ensure_pad_token(tokenizer)
    model: Any = load_causal_lm(directory, tokenizer)
    model = model.to(parts.device)
    use_attention(model, compute.attention)
    layout = tried_layout(model.base_model, compute.layout, lambda reason: parts.say(f"{name}: {reason}"))
    return Loaded(name, model, tokenizer, layout)


def _written(
    loaded: Loaded, first: Loaded, rows: Sequence[Mapping[str, Any]], settings: ExperimentSettings, decoding: str
) -> tuple[Assessment, dict[str, float]]:
    """What a model writes, and its measures that need a model."""
    own, chat = settings.evaluation, settings.model.chat_template
    prompts = Prompts([encode_prompt(loaded.tokenizer, row["prompt"], chat) for row in rows], rows)
    longest = max(map(len, prompts.ids)) + own.max_new_tokens
    check_context(loaded.model, longest, "evaluation.max_new_tokens")
    shared = loaded is not first and same_tokens(loaded.tokenizer, first.tokenizer)
    sampling = make_sampling(
        loaded.model,
        loaded.tokenizer,
        temperature=0.0 if decoding == "greedy" else own.temperature,
        max_new_tokens=own.max_new_tokens,
        compute=settings.compute,
        layout=loaded.layout,
    )
    assessment = assess(
        loaded.model,
        reference_logprobs(first.model, own.temperature, first.layout) if shared else None,
        prompts,
        loaded.tokenizer,
        sampling,
        samples=1 if decoding == "greedy" else own.completions,
        seed=own.seed,
        proxy=_unscored,
        gold=None,
        kl_temperature=own.temperature,
    )
    found = means(assessment.first(len(assessment.texts[0])))
    measures = {name: found[name] for name in MEASURED if name in found}
    measures["perplexity_under_the_first"] = _perplexity(first, assessment, rows, settings)
    return assessment, measures


def _unscored(groups: CompletionGroups, rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """A reward for callers that have none: zeros."""
    return torch.zeros(groups.completion_ids.shape[:2])


def _perplexity(
    first: Loaded, assessment: Assessment, rows: Sequence[Mapping[str, Any]], settings: ExperimentSettings
) -> float:
    """Of the texts under the first model, in its own tokens."""
    encoded = [encode_prompt(first.tokenizer, row["prompt"], settings.model.chat_template) for row in rows]
    pairs = [(encoded[i], text) for i, group in enumerate(assessment.texts) for text in group]
    completions = [encode_completion(first.tokenizer, text) for _, text in pairs]
    budget = settings.compute.max_tokens_per_batch
    prompts = [ids for ids, _ in pairs]
    return perplexity(token_logprobs(first.model, prompts, completions, budget, pad_id(first.tokenizer)))


def _with_texts(
    assessed: Sequence[tuple[str, Assessment, dict[str, float]]], rows: Sequence[Mapping[str, Any]], referenced: bool
) -> list[Written]:
    """Every model's rows, and the measures of its texts; diversity at one length for all."""
    texts = [[text for group in assessment.texts for text in group] for _, assessment, _ in assessed]
    words = equal_length(texts)
    written = []
    for (name, assessment, measures), own in zip(assessed, texts, strict=True):
        count = len(assessment.texts[0])
        spread = [{**row, "prompt": shown_text(row["prompt"])} for row in rows for _ in range(count)]
        kept = [{**row, "completion": text} for row, text in zip(spread, own, strict=True)]
        overlap = mean_rouge(own, [shown_text(row["reference"]) for row in spread]) if referenced else {}
        written.append(Written(name, kept, measures | text_measures(own, words) | overlap))
    return written


def _pairs(written: Sequence[Written], references: Sequence[Mapping[str, Any]]) -> dict[str, Pairs]:
    """Who meets whom, by a title that says it."""
    found: dict[str, Pairs] = {}
    for i, each in enumerate(written, start=1):
        if references:
            count = len(each.rows) // len(references)
            theirs = [
                {**row, "prompt": shown_text(row["prompt"]), "completion": shown_text(row["reference"])}
                for row in references
                for _ in range(count)
            ]
            found[f"{i} against the references"] = pair_up(each.rows, theirs)
        if i > 1:
            found[f"{i} against 1"] = pair_up(each.rows, written[0].rows)
    return found
