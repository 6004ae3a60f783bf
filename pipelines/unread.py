"""Which settings of its sections a stage does not read, so that changing them changes nothing it makes.

That these rules are right, and complete, is not a matter of opinion: `tests/pipelines/test_reuse_matrix.py` runs the
stages and looks at what they read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rloo_core.data.files import data_files
from rloo_core.settings import AlgorithmSettings, ComputeSettings, ExperimentSettings, RewardModelSettings
from rloo_core.stages import Stage

# Read, and of no effect on any number of the result, by their last name.
NO_EFFECT = frozenset(
    {
        *("checkpoint_every", "checkpoint_minutes", "keep_checkpoints"),
        *("api_key_env", "concurrency", "attempts", "timeout_seconds", "longest_wait_seconds", "cache"),  # of a judge
    }
)


@dataclass(frozen=True)
class SwitchedOff:
    """Settings, or sections (names with a dot at the end), that a stage does not read while `when` holds."""

    names: tuple[str, ...]
    when: Callable[[Stage, ExperimentSettings], bool]


def local(path: str | None) -> bool:
    """Whether a setting names something on this machine, not on a hub."""
    return path is not None and Path(path).exists()


def _algorithm(*names: str, when: Callable[[AlgorithmSettings], bool]) -> SwitchedOff:
    return SwitchedOff(tuple(f"algorithm.{name}" for name in names), lambda _, s: when(s.algorithm))


def _from_nothing(settings: ExperimentSettings) -> bool:
    return settings.model.path is None and settings.model.gguf_package is None


def _uses_ratio(own: AlgorithmSettings) -> bool:
    return own.action != "pair" and own.surrogate != "nll" and own.ratio != "none"


ONLINE = (
    *("group_size", "loss_agg", "whiten_advantages", "ratio", "kl.", "kl_coef", "reward_clip", "reward_noise"),
    *("missing_eos", "missing_eos_penalty", "overlong_buffer", "mask_truncated", "resample_equal_rewards"),
    "sampler_cap",
)

# What a run without a reward model says about it.
NO_REWARD_MODEL = (
    "model.",
    *(f"reward_model.{name}" for name in RewardModelSettings.model_fields if name != "enabled"),
    *(f"compute.{name}" for name in ComputeSettings.model_fields if name != "threads"),
)

SWITCHED_OFF = (
    # The data stage tokenises: of the model it reads the tokenizer alone. Later stages start from earlier ones' models.
    SwitchedOff(("model.scratch.", "model.lora."), lambda stage, _: stage.name == "data"),
    SwitchedOff(
        ("model.path", "model.revision", "model.gguf_package", "model.gguf_file", "model.scratch."),
        lambda stage, _: stage.name not in ("data", "sft"),
    ),
    SwitchedOff(("model.scratch.",), lambda _, s: not _from_nothing(s)),
    SwitchedOff(("model.revision", "model.gguf_file"), lambda _, s: _from_nothing(s)),
    SwitchedOff(("model.gguf_package",), lambda stage, s: stage.name == "sft" and s.model.path is not None),
    SwitchedOff(("model.lora.",), lambda stage, _: stage.name == "evaluation"),
    SwitchedOff(("model.lora.alpha", "model.lora.target_modules"), lambda _, s: s.model.lora.rank == 0),
    SwitchedOff(("data.synthetic.",), lambda _, s: s.data.source != "synthetic"),
    # Where local files lie does not matter: their bytes are in the fingerprint.
    SwitchedOff(("data.path",), lambda _, s: s.data.source == "synthetic" or bool(data_files(s.data))),
    SwitchedOff(("model.path",), lambda _, s: local(s.model.path)),
    SwitchedOff(NO_REWARD_MODEL, lambda stage, s: stage.name == "reward_model" and not s.reward_model.enabled),
    SwitchedOff(("reward_model.path",), lambda _, s: local(s.reward_model.path)),
    SwitchedOff(("compute.layout",), lambda stage, _: stage.name == "sft"),
    SwitchedOff(("evaluation.llm.",), lambda _, s: "llm" not in s.evaluation.judges),
    # Nothing is trained there.
    SwitchedOff(("compute.processes", "compute.gradient_checkpointing"), lambda stage, _: stage.name == "evaluation"),
    # Nothing is sampled there, or as exactly as the model is.
    SwitchedOff(("compute.sampling_precision",), lambda stage, _: stage.name != "policy"),
    # Two names of one device.
    SwitchedOff(("compute.device",), lambda _, s: True),
    # A label.
    _algorithm("name", when=lambda own: True),
    _algorithm("critic.", "gae_lambda", when=lambda own: own.advantage != "gae"),
    _algorithm("dpo.", when=lambda own: own.action != "pair"),
    _algorithm(*ONLINE, when=lambda own: own.action == "pair"),
    _algorithm("clip", when=lambda own: not _uses_ratio(own)),
    _algorithm("clip_high", when=lambda own: own.clip is None or not _uses_ratio(own)),
    _algorithm("ratio_cap", when=lambda own: not _uses_ratio(own) or own.clip is not None),
    _algorithm("kl.monitor", when=lambda own: own.kl_coef == 0),
    _algorithm("kl.estimator", when=lambda own: own.kl_coef == 0 or own.kl.place != "loss"),
    _algorithm("kl.horizon", when=lambda own: own.kl.target is None),
)


def is_read(stage: Stage, settings: ExperimentSettings, name: str) -> bool:
    """Whether a setting of a stage's sections counts for what the stage makes."""
    off = {each for switch in SWITCHED_OFF if switch.when(stage, settings) for each in switch.names}
    inside = any(each.endswith(".") and name.startswith(each) for each in off)
    return name not in off and not inside and name.rpartition(".")[2] not in NO_EFFECT
