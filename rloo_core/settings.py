"""What each stage can be told: types, ranges and nothing else.

Every value and every comment about its meaning, unit and source lives in `conf/`; there are no defaults here, so a
default has one home. A stage takes one of the `*StageSettings` at the end of this file.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Settings(BaseModel):
    """Base of all settings: unknown keys and wrong types are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SyntheticSettings(Settings):
    """The embedded "TL;DR" task."""

    prompts: Count
    demonstrations: Count
    preferences: Count
    validation: Count
    test: Count
    label_temperature: NonNegative


class DataSettings(Settings):
    """Where prompts, demonstrations and preferences come from, and which rows are used."""

    source: Literal["synthetic", "hh", "tldr", "tables"]
    path: str | None
    format: Literal["text", "messages"]
    max_prompt_tokens: Count
    max_total_tokens: Count
    max_rows: Count | None
    validation_fraction: Fraction
    test_fraction: Fraction
    seed: CountOrZero
    synthetic: SyntheticSettings


class ScratchSettings(Settings):
    """Shape of a GPT-NeoX (Pythia) model trained from nothing."""

    hidden_size: Count
    layers: Count
    heads: Count
    intermediate_size: Count
    max_positions: Count
    initializer_range: Positive
    rotary_fraction: Fraction


class LoraSettings(Settings):
    """Low-rank adapters; rank 0 trains all weights."""

    rank: CountOrZero
    alpha: Count
    target_modules: Annotated[tuple[str, ...], Field(strict=False)] | Literal["all-linear"]


class ModelSettings(Settings):
    """The model that SFT starts from."""

    path: str | None
    revision: str | None
    gguf_package: str | None
    gguf_file: str | None
    chat_template: bool
    scratch: ScratchSettings
    lora: LoraSettings


class TrainingSettings(Settings):
    """What every training stage has: optimiser, schedule, checkpoints."""

    seed: CountOrZero
    learning_rate: Positive
    schedule: Literal["constant", "linear", "cosine"]
    warmup_fraction: Fraction
    weight_decay: NonNegative
    adam_beta2: Fraction
    adam_epsilon: Positive
    max_grad_norm: Positive
    eval_every: CountOrZero
    checkpoint_every: CountOrZero
    checkpoint_minutes: Positive
    keep_checkpoints: Count


class SftSettings(TrainingSettings):
    """Supervised fine-tuning on demonstrations."""

    epochs: Positive
    batch_size: Count


class RewardModelSettings(TrainingSettings):
    """Reward model trained on preference pairs, or brought along."""

    path: str | None
    epochs: Positive
    batch_size: Count
    center: bool


class AlgorithmSettings(TrainingSettings):
    """Policy optimisation."""

    name: Literal["rloo"]
    steps: Count
    rollout_batch_size: Count
    group_size: Count
    kl_coef: NonNegative
    temperature: Positive
    max_new_tokens: Count
    missing_eos_penalty: NonNegative | None
    reward_function: str | None
    eval_prompts: Count


class EvaluationSettings(Settings):
    """How policies are compared on held-out prompts."""

    seed: CountOrZero
    prompts: Count | None
    temperature: Positive
    max_new_tokens: Count
    best_of: CountOrZero
    judge: Literal["auto", "gold", "reward"]
    samples: Count


class TrackingSettings(Settings):
    """Where MLflow keeps the evidence."""

    uri: str | None
    experiment: str
    register_models: bool
    log_models: bool


class ComputeSettings(Settings):
    """The machine's part in a run."""

    device: Literal["auto", "cpu", "cuda"]
    threads: Count
    precision: Literal["float32", "bfloat16"]
    max_tokens_per_batch: Count
    layout: Literal["auto", "shared", "padded"]


class PathsSettings(Settings):
    """Where everything a run leaves behind is kept."""

    root: str


class ExperimentSettings(Settings):
    """A whole run."""

    name: str
    seed: CountOrZero
    data: DataSettings
    model: ModelSettings
    sft: SftSettings
    reward_model: RewardModelSettings
    algorithm: AlgorithmSettings
    evaluation: EvaluationSettings
    tracking: TrackingSettings
    compute: ComputeSettings
    paths: PathsSettings


class DataStageSettings(Settings):
    data: DataSettings
    model: ModelSettings


class SftStageSettings(Settings):
    sft: SftSettings
    model: ModelSettings
    compute: ComputeSettings


class RewardModelStageSettings(Settings):
    reward_model: RewardModelSettings
    model: ModelSettings
    compute: ComputeSettings


class PolicyStageSettings(Settings):
    algorithm: AlgorithmSettings
    model: ModelSettings
    compute: ComputeSettings


class EvaluationStageSettings(Settings):
    evaluation: EvaluationSettings
    model: ModelSettings
    compute: ComputeSettings
