"""Reward model: scores completions so that preferred ones score higher."""

from collections.abc import Mapping
from pathlib import Path

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from rloo_core.algorithms.reward_modelling import RewardModelling
from rloo_core.data.tables import read_table
from rloo_core.data.tokens import token_ids
from rloo_core.observer import Observer
from rloo_core.optimization import checkpoint_gradients
from rloo_core.reward_models import (
    TEMPLATE,
    RewardModel,
    add_reward_lora,
    load_reward_model,
    new_reward_model,
    save_reward_model,
    score_completions,
    trained_with_template,
)
from rloo_core.settings import RewardModelSettings, RewardModelStageSettings
from rloo_core.stages.common import (
    MODEL,
    given_completions,
    stage_layout,
    stage_tokenizer,
    steps_for,
    use_threads,
)
from rloo_core.tokenization import load_tokenizer
from rloo_core.trainer import TrainingLoop, make_accelerator
from rloo_core.types import CompletionGroups

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
CENTERING_ROWS = 1024  # enough for the mean of a reward with std 1 to be known to 0.03


def run(
    settings: RewardModelStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer
) -> dict[str, float]:
    """Train on `preferences` from the SFT model, or take over `reward_model.path`; leaves `model/`.

    Returns:
        Metrics of the step whose weights are left (`reward_model.keep_best`, else the last one), held-out accuracy
        among them, and the offset that centres the reward.
    """
    use_threads(settings.compute)
    if not settings.reward_model.enabled:
        observer.message("reward_model.enabled=false: no reward model is trained or read")
        (out / "none.txt").write_text("reward_model.enabled=false\n")  # a stage leaves something, or it has failed
        return {}
    tokenizer = stage_tokenizer(inputs)
    summary: dict[str, float] = {}
    if settings.reward_model.path is not None:
        tokenizer = _own_tokenizer(settings.reward_model.path) or tokenizer
        _check_template(settings.reward_model.path, tokenizer, inputs)
        model = load_reward_model(settings.reward_model.path, tokenizer)
    else:
        model, summary = _train(settings, inputs, tokenizer, out, observer)
        setattr(model.classifier.config, TEMPLATE, settings.model.chat_template)
    if settings.reward_model.center:
        model.offset += _mean_reward(model, settings, inputs, tokenizer)
    if PartialState().is_main_process:
        save_reward_model(model, tokenizer, out / MODEL)
    return {**summary, "reward/offset": model.offset}


def _own_tokenizer(path: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer that lies beside a reward model; None where there is none, and the run's own is meant."""
    local = Path(path).is_dir()
    if local and not any((Path(path) / name).exists() for name in TOKENIZER_FILES):
        return None
    return load_tokenizer(path)


def _check_template(path: str, tokenizer: PreTrainedTokenizerBase, inputs: Mapping[str, Path]) -> None:
    rows = read_table(inputs["data"], "prompts", "train")
    if tokenizer.chat_template is None and any(not isinstance(row["prompt"], str) for row in rows[:1]):
        raise ValueError(
            f"reward_model.path={path} has a tokenizer without a chat template, but the prompts are chat messages "
            f"(data.format=messages); put the template it was trained with beside it, as chat_template.jinja"
        )


def _train(
    settings: RewardModelStageSettings,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    observer: Observer,
) -> tuple[RewardModel, dict[str, float]]:
    own: RewardModelSettings = settings.reward_model
    accelerator, chat = make_accelerator(settings.compute), settings.model.chat_template
    plain = new_reward_model(inputs["sft"] / MODEL, tokenizer, own.seed)
    plain.layout = stage_layout(plain.to(accelerator.device).classifier, settings.compute, observer)
    splits = {
        split: given_completions(
            inputs, "preferences", split, ["chosen", "rejected"], tokenizer, chat, settings.compute,
            plain.layout, plain.classifier.config,
        )
        for split in ("train", "validation")
    }  # fmt: skip
    if len(splits["train"]) == 0:
        raise ValueError(
            "there are no preference pairs to train a reward model on; bring a table `preferences`, or set "
            "reward_model.path to a trained one"
        )
    if settings.compute.gradient_checkpointing:
        checkpoint_gradients(plain.classifier)
    model = add_reward_lora(plain, settings.model.lora, own.seed)
    steps = steps_for(own.epochs, len(splits["train"]), own.batch_size)
    loop = TrainingLoop(accelerator, model, own, steps, out, observer)
    loop.run(
        RewardModelling(loop.model, splits["train"], splits["validation"], own.batch_size, own.seed, loop.processes)
    )
    summary = loop.take_best()
    trained: RewardModel = loop.accelerator.unwrap_model(loop.model)
    return trained, {**summary, "train/rows": len(splits["train"])}


def _mean_reward(
    model: RewardModel,
    settings: RewardModelStageSettings,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
) -> float:
    """Mean reward of the first prompts' references, or of the first demonstrations where there are none."""

    def written(table: str, column: str) -> list[tuple[list[int], list[int]]]:
        columns, template = ["prompt", column], trained_with_template(model)
        prompts, replies = token_ids(inputs["data"], table, "train", columns, tokenizer, template, CENTERING_ROWS)
        return [pair for pair in zip(prompts, replies, strict=True) if len(pair[1]) > 1]  # more than an EOS

    pairs = written("prompts", "reference") or written("demonstrations", "completion")
    groups = CompletionGroups.from_ids(
        [prompt for prompt, _ in pairs],
        [[reply] for _, reply in pairs],
        pad_id=0,  # masks tell padding from text, and a brought tokenizer may have no pad token
    )
    return score_completions(model, groups, settings.compute.max_tokens_per_batch).mean().item()
