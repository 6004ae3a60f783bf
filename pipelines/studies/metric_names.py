"""Metrics that a study can name, so that a name which no run measures is told before anything is computed.

What a run really measures is checked against this list in `tests/end_to_end/test_study_metrics.py`.
"""

from collections.abc import Iterator
from functools import cache

from pipelines.config_errors import nearest

OF_COMPLETIONS = ("proxy_reward", "gold_reward", "kl", "kl_k3", "length", "finished")
OF_STEPS = (
    "loss", "loss/policy", "loss/kl", "loss/critic", "grad/norm", "learning_rate", "reward/mean", "reward/std",
    "reward/unscorable_frac", "reward/dropped_frac", "reward/group_std", "reward/zero_std_frac", "shaped_reward/mean",
    "advantage/std", "baseline/mean", "completion/length_mean", "completion/finished_frac", "completion/truncated_frac",
    "policy/entropy", "policy/clip_frac", "kl/mean", "kl/k1_mean", "kl/k2_mean", "kl/k3_mean", "kl/coef", "ratio/mean",
    "ratio/std", "ratio/min", "ratio/max", "critic/explained_variance", "critic/value_mean", "critic/grad_norm",
    "sampler/log_ratio_abs_mean", "accuracy", "margin/mean", "logprob/chosen_mean", "logprob/rejected_mean",
    "reward/chosen_mean", "reward/rejected_mean",
)  # fmt: skip
OF_HELD_OUT_PAIRS = ("loss", "accuracy")
OF_REWARD_MODELS = (
    "accuracy", "loss", "margin/mean", "reward/offset", "grad/norm", "learning_rate", "train/rows",
    "validation/accuracy", "validation/loss", "validation/margin/mean",
)  # fmt: skip
OF_PREFERENCES = (
    "accuracy", "accuracy_low", "accuracy_high", "log_loss", "brier", "calibration_error", "longer_preferred",
    "longer_chosen", "length_correlation", "pairs",
)  # fmt: skip
OF_TEXTS = (
    "distinct_1", "distinct_2", "distinct_1_at_equal_length", "distinct_2_at_equal_length", "repetition_4", "self_bleu",
    "rouge1", "rouge2", "rougeL", "perplexity", "proxy_gold_correlation",
)  # fmt: skip
SPREADS = ("variance", "p05", "p25", "p50", "p75", "p95")
ENDS = ("", "_low", "_high")
MODES = ("greedy", "sampled")


def unknown_metric(name: str, of_curve: bool) -> str | None:
    """What is wrong with a metric's name: a sentence, or None.

    Args:
        name: As a study says it.
        of_curve: Whether it is read off the policy's training, not off the summaries of its stages.
    """
    known = _of_curves() if of_curve else (*_of_curves(), *_of_summaries())
    if name in known or _is_users_own(name, of_curve):
        return None
    if of_curve and name in _of_summaries():
        return f"{name} is measured at the end, not over the training; leave out `take`, or name another metric"
    kinds = "those over the training begin with validation/ or reward/, those at the end with evaluation/"
    return f"no run measures {name}{nearest(name, known) or f'; {kinds}'}"


def needs_gold(name: str) -> bool:
    """Whether only the embedded task has this metric: nobody knows the true reward of real completions."""
    return "gold" in name


def _is_users_own(name: str, of_curve: bool) -> bool:
    """Named after a reward's term, or after a judge."""
    of_term = name.startswith("reward/") and name.endswith("_mean") and name.count("/") == 1
    return of_term or (not of_curve and name.startswith("evaluation/judges/"))


@cache
def _of_curves() -> tuple[str, ...]:
    """Of the policy stage, step by step; its summary has them, too."""
    return (*OF_STEPS, *(f"validation/{name}" for name in (*OF_COMPLETIONS, *OF_HELD_OUT_PAIRS)))


@cache
def _of_summaries() -> tuple[str, ...]:
    of_reward_models = (f"reward_model/{name}" for name in OF_REWARD_MODELS)
    return (*(f"evaluation/{name}" for name in _of_evaluation()), *of_reward_models)


def _of_evaluation() -> Iterator[str]:
    yield from ("prompts", "equal_length")
    yield from (f"sft/best_of_n/win_rate{end}" for end in ENDS)
    yield from (f"reward_model/{name}" for name in OF_PREFERENCES)
    rates = (f"{kind}{end}" for kind in ("win_rate", "length_controlled_win_rate") for end in ENDS)
    wins = (*rates, "length_effect", "ties")
    spreads = (f"{reward}_{each}" for reward in ("proxy_reward", "gold_reward") for each in SPREADS)
    measures = (*OF_COMPLETIONS, *OF_TEXTS, *spreads, *wins)
    for mode in MODES:
        yield from (f"{arm}/{mode}/{name}" for arm in ("sft", "policy") for name in measures)
        yield from (f"policy_against_sft/{mode}/{name}" for name in wins)
        yield from (f"difference/{mode}/win_rate{end}" for end in ENDS)
