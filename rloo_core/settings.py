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
Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]
Port = Annotated[int, Field(ge=1, le=65535)]


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

    source: str
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
    keep_best: str | None


class SftSettings(TrainingSettings):
    """Supervised fine-tuning on demonstrations."""

    epochs: Positive
    batch_size: Count


class RewardModelSettings(TrainingSettings):
    """Reward model trained on preference pairs, or brought along."""

    enabled: bool
    path: str | None
    epochs: Positive
    batch_size: Count
    center: bool


class RewardTerm(Settings):
    """One reward of a weighted sum."""

    function: str
    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0  # a bare name's, too
    arguments: dict[str, bool | int | float | str] = {}


class RewardSettings(Settings):
    """What a completion is worth."""

    terms: Annotated[tuple[str | RewardTerm, ...], Field(strict=False, min_length=1)]


class KlSettings(Settings):
    """How the KL to the reference is estimated and where it acts; its weight is `kl_coef`."""

    place: Literal["reward", "loss"]
    estimator: Literal["k1", "k2", "k3"]
    monitor: Literal["k1", "k2", "k3"]
    target: Positive | None
    horizon: Count


class CriticSettings(Settings):
    """The learned value function of `advantage: gae`."""

    start: Literal["reward_model", "sft"]
    learning_rate: Positive
    value_clip: Positive | None


class DpoSettings(Settings):
    """Offline learning from preference pairs."""

    beta: Positive
    label_smoothing: Annotated[float, Field(ge=0.0, lt=0.5)]


class AlgorithmSettings(TrainingSettings):
    """Policy optimisation: three choices (action, advantage, surrogate) and switches that go with any of them."""

    name: str
    action: Literal["sequence", "token", "pair"]
    advantage: str | None
    surrogate: Literal["reinforce", "nll", "dpo", "ipo"]
    steps: Count
    rollout_batch_size: Count
    step_batch_size: Count | None
    epochs_per_rollout: Count
    group_size: Count
    temperature: Positive
    top_k: Count | None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None
    min_p: Fraction | None
    max_new_tokens: Count
    stop: Texts
    loss_agg: Literal["sequence_sum", "sequence_mean", "token_mean", "fixed_length"]
    whiten_advantages: bool
    ratio: Literal["none", "token", "sequence", "sequence_mean"]
    ratio_cap: Positive | None
    sampler_cap: Positive | None
    clip: Positive | None
    clip_high: Positive | None
    gae_lambda: Fraction
    kl_coef: NonNegative
    kl: KlSettings
    reward_clip: Positive | None
    reward_noise: NonNegative
    missing_eos: Literal["subtract", "replace"]
    missing_eos_penalty: NonNegative | None
    overlong_buffer: Count | None
    mask_truncated: bool
    resample_equal_rewards: CountOrZero
    critic: CriticSettings
    dpo: DpoSettings
    eval_prompts: Count


class LlmJudgeSettings(Settings):
    """A language model as judge, over the OpenAI-compatible interface."""

    base_url: str | None
    model: str
    api_key_env: str
    template: str
    temperature: NonNegative | None
    max_tokens: Count
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"]
    concurrency: Count
    attempts: Count
    timeout_seconds: Positive
    longest_wait_seconds: Positive
    cache: str
    price_prompt: NonNegative
    price_completion: NonNegative


class EvaluationSettings(Settings):
    """How policies are compared on held-out prompts."""

    seed: CountOrZero
    prompts: Count | None
    temperature: Positive
    max_new_tokens: Count
    stop: Texts
    completions: Count
    best_of: CountOrZero
    judge: Literal["auto", "gold", "reward"]
    judges: Annotated[tuple[str, ...], Field(strict=False)]
    judge_decoding: Literal["greedy", "sampled", "both"]
    samples: Count
    llm: LlmJudgeSettings


class TrackingSettings(Settings):
    """Where MLflow keeps the evidence."""

    uri: str | None
    artifacts: str | None
    experiment: str
    register_models: bool
    log_models: bool
    champion: bool


class ComputeSettings(Settings):
    """The machine's part in a run."""

    device: Literal["auto", "cpu", "cuda"]
    processes: Count
    threads: Count
    precision: Literal["float32", "bfloat16"]
    sampling_precision: Literal["float32", "bfloat16"]
    max_tokens_per_batch: Count
    layout: Literal["auto", "shared", "padded"]
    attention: Literal["auto", "sdpa", "eager", "flex_attention"]
    gradient_checkpointing: bool


class PathsSettings(Settings):
    """Where everything a run leaves behind is kept."""

    root: str


class ServicesSettings(Settings):
    """The services of one machine: Prefect, its worker, MLflow."""

    prefect_port: Port
    mlflow_port: Port
    prefect_database: str | None
    work_pool: str
    runs_at_once: Count


class ExperimentSettings(Settings):
    """A whole run."""

    name: str
    seed: CountOrZero
    data: DataSettings
    model: ModelSettings
    sft: SftSettings
    reward_model: RewardModelSettings
    reward: RewardSettings
    algorithm: AlgorithmSettings
    evaluation: EvaluationSettings
    tracking: TrackingSettings
    compute: ComputeSettings
    paths: PathsSettings
    services: ServicesSettings


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
    reward: RewardSettings
    model: ModelSettings
    compute: ComputeSettings


class EvaluationStageSettings(Settings):
    evaluation: EvaluationSettings
    reward: RewardSettings
    model: ModelSettings
    compute: ComputeSettings
