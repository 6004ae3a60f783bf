"""The peers' side: TRL's trainers and `generate`, with the settings that suit them best on one core.

One thread, float32, no gradient checkpointing, fused AdamW, no reports, dropout off, and the whole batch in one forward
pass, which is fastest for it. TRL's RLOO samples with `generate` (vLLM and paged attention need a GPU).
"""

import tempfile
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    TrainerCallback,
)

from tests.benchmarks.cases import EOS, PAD, Case, reward
from tests.benchmarks.meter import Meter
from tests.benchmarks.ours import KL_COEF, LEARNING_RATE


def measure(case: Case) -> dict[str, object]:
    """Seconds a step and memory."""
    meter: Meter = globals()[f"_{case.kind}"](case)
    return meter.report()


class _Steps(TrainerCallback):
    def __init__(self) -> None:
        self.meter = Meter()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.meter.start()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.meter.stop()


def _common(case: Case, directory: str, batch: int) -> dict[str, Any]:
    return {
        "output_dir": directory, "per_device_train_batch_size": batch, "gradient_accumulation_steps": 1,
        "max_steps": case.steps, "learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant", "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no",
        "logging_steps": 10**6, "disable_dropout": True, "optim": "adamw_torch_fused", "disable_tqdm": True,
    }  # fmt: skip


def _step(case: Case) -> Meter:
    from trl import RLOOConfig, RLOOTrainer

    steps = _Steps()
    with tempfile.TemporaryDirectory() as directory:
        config = RLOOConfig(
            **_common(case, directory, case.prompts * case.group_size), num_generations=case.group_size,
            max_completion_length=case.new_tokens, beta=KL_COEF, temperature=1.0, top_k=0, num_iterations=1,
            steps_per_generation=1, shuffle_dataset=False,
        )  # fmt: skip
        trainer = RLOOTrainer(
            _saved(case, directory), reward, config, Dataset.from_dict({"prompt": case.texts()}),
            processing_class=case.shape.tokenizer(), callbacks=[steps],
        )  # fmt: skip
        trainer.train()
    return steps.meter


def _saved(case: Case, directory: str) -> PreTrainedModel:
    """The model from a directory: TRL makes its reference model from there."""
    case.shape.model().save_pretrained(directory)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model


def _sampler(case: Case) -> Meter:
    model, prompts = case.shape.model(), case.prompt_ids()
    width = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    meter = Meter()
    for _ in range(case.steps):
        meter.start()
        with torch.no_grad():
            model.generate(
                ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, max_new_tokens=case.new_tokens,
                num_return_sequences=case.group_size, eos_token_id=EOS, pad_token_id=PAD,
            )  # fmt: skip
        meter.stop()
    return meter


def _reward_model(case: Case) -> Meter:
    from trl import RewardConfig, RewardTrainer

    torch.manual_seed(0)
    config = case.shape.config()
    config.num_labels = 1
    rows = [
        {"chosen_ids": prompt + pair[0], "rejected_ids": prompt + pair[1]}
        for prompt, pair in zip(case.prompt_ids(), case.completion_ids(), strict=True)
    ]
    steps = _Steps()
    with tempfile.TemporaryDirectory() as directory:
        trainer = RewardTrainer(
            AutoModelForSequenceClassification.from_config(config),
            RewardConfig(**_common(case, directory, case.prompts), max_length=None),
            train_dataset=Dataset.from_list(rows), processing_class=case.shape.tokenizer(), callbacks=[steps],
        )  # fmt: skip
        trainer.train()
    return steps.meter


def _dpo(case: Case) -> Meter:
    from trl import DPOConfig, DPOTrainer

    rows = [
        {"prompt": text, "chosen": _text(pair[0]), "rejected": _text(pair[1])}
        for text, pair in zip(case.texts(), case.completion_ids(), strict=True)
    ]
    steps = _Steps()
    with tempfile.TemporaryDirectory() as directory:
        trainer = DPOTrainer(
            case.shape.model(), ref_model=case.shape.model(),
            args=DPOConfig(**_common(case, directory, case.prompts), max_length=None),
            train_dataset=Dataset.from_list(rows), processing_class=case.shape.tokenizer(), callbacks=[steps],
        )  # fmt: skip
        trainer.train()
    return steps.meter


def _text(ids: list[int]) -> str:
    return " " + " ".join(f"w{i}" for i in ids)
