"""TRL 1.16's trainers on given completions and rewards: what they sample is replaced, everything else is theirs."""

import warnings

import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from tests.rloo_core.tiny import tiny_tokenizer

LONGEST = 6  # tokens a completion may have


class GivenRLOO(RLOOTrainer):
    """Completions are given, one list of ids a row."""

    given: list

    def _generate_single_turn(self, prompt_ids, *others, **named):
        return self.given


class GivenGRPO(GRPOTrainer):
    """Completions are given, one list of ids a row."""

    given: list

    def _generate_single_turn(self, prompt_ids, *others, **named):
        return self.given, None


COMMON = {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "logging_strategy": "no"}


def text(ids):
    return " ".join(f"w{i}" for i in ids)


def trainer_of(kind, model, reference, prompts, completions, rewards, place, **options):
    """A trainer whose batch is these completions [P][K] with these rewards [P][K]; its reference is `reference`."""
    group = len(completions[0])
    flat = [value for row in rewards for value in row]
    config = {GivenRLOO: RLOOConfig, GivenGRPO: GRPOConfig}[kind](
        output_dir=str(place), per_device_train_batch_size=len(flat), num_generations=group,
        max_completion_length=LONGEST, gradient_accumulation_steps=1, **(COMMON | {"disable_dropout": True} | options),
    )  # fmt: skip
    reference.save_pretrained(place / "reference")
    model.config._name_or_path = str(place / "reference")  # where it looks for its reference
    seen = []

    def reward(prompts, completions, completion_ids, **columns):
        seen.append({"texts": completions, "ids": completion_ids})
        return flat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = kind(
            model=model, reward_funcs=reward, args=config, processing_class=tiny_tokenizer(),
            train_dataset=Dataset.from_list([{"prompt": text(prompt)} for prompt in prompts]),
        )  # fmt: skip
    trainer.given = [ids for row in completions for ids in row]
    trainer.rewarded = seen
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def batch_of(trainer, prompts, group):
    """What the trainer makes of its completions: masks, log-probs, advantages."""
    rows = [{"prompt": text(prompt)} for prompt in prompts for _ in range(group)]
    batch = trainer._generate_and_score_completions(rows)
    count = batch.get("num_items_in_batch")
    return batch if count is None else batch | {"num_items_in_batch": torch.as_tensor(count)}


def gradient_of(trainer, batch):
    """Gradient of its loss, and the loss."""
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()]), loss.item()


def dpo_gradient(model, reference, prompts, pairs, place, **options):
    """Gradient of its DPO loss on pairs [P][2], chosen first; the ids are given, without its tokenisation."""
    config = DPOConfig(output_dir=str(place), per_device_train_batch_size=len(prompts), **(COMMON | options))
    rows = [{"prompt": text(p), "chosen": " w5", "rejected": " w6"} for p in prompts]
    trainer = DPOTrainer(
        model=model, ref_model=reference, args=config, processing_class=tiny_tokenizer(),
        train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    examples = [
        {"prompt_ids": list(prompt), "chosen_ids": list(pair[0]), "rejected_ids": list(pair[1])}
        for prompt, pair in zip(prompts, pairs, strict=True)
    ]
    batch = trainer.data_collator(examples)
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, batch, return_outputs=False)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()]), loss.item()
