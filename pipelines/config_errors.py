"""How wrong settings are explained: the key, what came, what is allowed, the nearest right key."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence

PER_UPDATE_BATCHES = "algorithm.rollout_batch_size (completions a step), sft.batch_size or reward_model.batch_size"
BY_BATCH_TOKENS = "compute.max_tokens_per_batch: batches are cut by tokens, the result does not depend on it"

EVERYTHING = "; `rloo config` prints them all"

# Names from TRL, OpenRLHF, verl and LLaMA-Factory, and what they are called here. A value that is a key (or the end of
# one) is looked up among the known keys; anything else is an explanation.
OLD_NAMES: Mapping[str, str] = {
    "rloo_k": "group_size",
    "num_generations": "group_size",
    "n_samples_per_prompt": "group_size",
    "num_return_sequences": "group_size",
    "beta": "kl_coef",
    "init_kl_coef": "kl_coef",
    "kl_coeff": "kl_coef",
    "init_coef": "kl_coef",
    "max_completion_length": "algorithm.max_new_tokens",
    "response_length": "algorithm.max_new_tokens",
    "max_response_length": "algorithm.max_new_tokens",
    "stop_properly_penalty_coef": "missing_eos_penalty",
    "non_stop_penalty": "missing_eos_penalty",
    "reward_funcs": "reward.terms",
    "reward_function": "reward.terms",
    "reward_weights": "reward.terms: {function: NAME, weight: W, arguments: {}}",
    "max_steps": "algorithm.steps",
    "total_episodes": "algorithm.steps (updates): total_episodes / algorithm.rollout_batch_size",
    "num_sample_generations": "algorithm.eval_prompts, measured every algorithm.eval_every steps",
    "num_ppo_epochs": "epochs_per_rollout",
    "num_iterations": "epochs_per_rollout",
    "ppo_epochs": "epochs_per_rollout",
    "num_mini_batches": "algorithm.step_batch_size (completions an update): rollout_batch_size / num_mini_batches",
    "steps_per_generation": "algorithm.step_batch_size (completions): rollout_batch_size / steps_per_generation",
    "token_level_kl": "algorithm.action=token: each token pays its part of the KL, the reward comes with the last one",
    "cliprange": "algorithm.clip",
    "epsilon": "algorithm.clip",
    "eps_clip": "algorithm.clip",
    "clip_ratio": "algorithm.clip",
    "epsilon_high": "algorithm.clip_high",
    "cliprange_value": "algorithm.critic.value_clip",
    "value_clip": "algorithm.critic.value_clip",
    "vf_coef": "algorithm.critic.learning_rate: the critic's gradient is clipped apart, its loss needs no weight",
    "lam": "algorithm.gae_lambda",
    "lambd": "algorithm.gae_lambda",
    "normalize_advantages": "algorithm.whiten_advantages",
    "whiten_rewards": "algorithm.whiten_advantages",
    "importance_sampling_level": "algorithm.ratio",
    "loss_type": "algorithm.loss_agg (online) or algorithm.surrogate (dpo, ipo)",
    "loss_agg_mode": "algorithm.loss_agg",
    "scale_rewards": "algorithm.advantage=group_standardised",
    "advantage_estimator": "algorithm.advantage",
    "adv_estimator": "algorithm.advantage",
    "kl_estimator": "algorithm.kl.estimator",
    "use_kl_loss": "algorithm.kl.place",
    "use_kl_in_reward": "algorithm.kl.place",
    "target_kl": "algorithm.kl.target",
    "reward_clip_range": "algorithm.reward_clip",
    "mask_truncated_completions": "algorithm.mask_truncated",
    "per_device_train_batch_size": PER_UPDATE_BATCHES,
    "train_batch_size": PER_UPDATE_BATCHES,
    "gradient_accumulation_steps": BY_BATCH_TOKENS,
    "local_rollout_forward_batch_size": BY_BATCH_TOKENS,
    "micro_batch_size": BY_BATCH_TOKENS,
    "micro_train_batch_size": BY_BATCH_TOKENS,
    "per_device_eval_batch_size": "compute.max_tokens_per_batch",
    "num_train_epochs": "epochs",
    "lr": "learning_rate",
    "lr_scheduler_type": "schedule",
    "warmup_ratio": "warmup_fraction",
    "max_norm": "max_grad_norm",
    "save_steps": "checkpoint_every",
    "save_total_limit": "keep_checkpoints",
    "metric_for_best_model": "keep_best",
    "load_best_model_at_end": "keep_best",
    "eval_steps": "eval_every",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_length": "data.max_total_tokens",
    "max_seq_length": "data.max_total_tokens",
    "dataset_name": "data.path",
    "dataset": "data.path",
    "model_name_or_path": "model.path",
    "sft_model_path": "model.path",
    "pretrain": "model.path",
    "reward_model_path": "reward_model.path",
    "lora_r": "model.lora.rank",
    "lora_alpha": "model.lora.alpha",
    "lora_target_modules": "model.lora.target_modules",
    "bf16": "compute.precision=bfloat16",
    "fp16": "compute.precision=bfloat16 (float16 is not offered)",
    "output_dir": "paths.root",
    "run_name": "name",
    "report_to": "the group `tracking` (MLflow)",
}


class Refused(Exception):
    """A command cannot do what it was asked; the message is a sentence that says why and what to do."""


class ConfigError(Exception):
    """Settings or options that cannot be run. Holds every problem found, one sentence each."""

    def __init__(self, problems: Sequence[str] | str) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


def nearest(word: str, words: Iterable[str]) -> str:
    """', did you mean X?' for the most similar of `words`, or nothing."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def listed(items: Iterable[str], last: str = "or") -> str:
    """'a, b or c'."""
    words = list(items)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def unknown_key(key: str, known: Collection[str], groups: Collection[str] = ()) -> str:
    """The sentence for a key that does not exist: its name here, if other trainers call it so, else the nearest.

    Args:
        key: Dotted, as typed.
        known: Dotted names of all settings.
        groups: Folders of conf/, which are chosen like settings.
    """
    section, _, leaf = key.rpartition(".")
    if leaf in OLD_NAMES:
        return f"{key} is called {_name_here(section, OLD_NAMES[leaf], known)} here"
    same_name = _ending_in(leaf, known)
    if same_name:
        return f"there is no setting {key}; did you mean {listed(same_name)}?"
    return (
        f"there is no setting {key}{_in_section(section, leaf, known) or nearest(key, [*groups, *known]) or EVERYTHING}"
    )


def _name_here(section: str, name: str, known: Collection[str]) -> str:
    candidates = _ending_in(name, known)
    in_section = [key for key in candidates if section and key.startswith(f"{section}.")]
    return listed(in_section or candidates) if candidates else name


def _ending_in(name: str, known: Collection[str]) -> list[str]:
    return [key for key in known if key == name or key.endswith(f".{name}")]


def _in_section(section: str, leaf: str, known: Collection[str]) -> str:
    """The nearest setting of that section, or all it has; nothing where there is no such section."""
    names = [key.removeprefix(f"{section}.") for key in known if section and key.startswith(f"{section}.")]
    if not names:
        return ""
    close = difflib.get_close_matches(leaf, names, n=1, cutoff=0.6)
    return f"; did you mean {section}.{close[0]}?" if close else f"; {section} has {listed(names, 'and')}"
