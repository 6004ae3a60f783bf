"""Which choices and switches of an algorithm go together; each contradiction as one sentence with its reason."""

from rloo_core.rules import RULES, Values, rule

SIBLINGS = ("leave_one_out", "best_of_group", "group_mean", "group_standardised")
SAMPLED_EXACTLY = (
    "algorithm.sampler_cap={}, but compute.sampling_precision=float32 samples from the very weights that train: there "
    "is nothing to correct; set algorithm.sampler_cap=null"
)
ADVANTAGES = (*SIBLINGS, "running_mean", "gae")
PAIR_SURROGATES = ("dpo", "ipo")
# what decides how an algorithm samples or turns advantages into a gradient, and its value when it does nothing
IDLE = {
    "ratio": "none", "ratio_cap": None, "sampler_cap": None, "clip": None, "clip_high": None,
    "whiten_advantages": False, "mask_truncated": False,
}  # fmt: skip


def found(values: Values) -> list[str]:
    """Sentences for everything that cannot run, in settings of an algorithm by their dotted names, `algorithm.…`."""
    own = [rule for rule in RULES if rule.check.__module__ == __name__]
    return [problem for rule in own if (problem := rule.check(values)) is not None]


def _pairs(v: Values) -> bool:
    return bool(v["algorithm.action"] == "pair")


def _updates(v: Values) -> int:
    size = v["algorithm.step_batch_size"] or v["algorithm.rollout_batch_size"]
    return int(v["algorithm.epochs_per_rollout"] * -(-v["algorithm.rollout_batch_size"] // size))


UPDATES = ("algorithm.step_batch_size", "algorithm.rollout_batch_size", "algorithm.epochs_per_rollout")


@rule("algorithm.name")
def _named(v: Values) -> str | None:
    return None if v["algorithm.name"].strip() else "algorithm.name is empty; give the algorithm a name, e.g. rloo"


@rule("algorithm.action", "algorithm.surrogate", "algorithm.advantage")
def _pairs_are_not_sampled(v: Values) -> str | None:
    surrogate, advantage = v["algorithm.surrogate"], v["algorithm.advantage"]
    if _pairs(v) and surrogate not in PAIR_SURROGATES:
        return f"algorithm.surrogate={surrogate}, but algorithm.action=pair learns from pairs; set it to dpo or ipo"
    if not _pairs(v) and surrogate in PAIR_SURROGATES:
        return f"algorithm.surrogate={surrogate} needs given pairs; set algorithm=dpo"
    if _pairs(v) and advantage is not None:
        return f"algorithm.advantage={advantage}, but pairs have no rewards to compare; set algorithm.advantage=null"
    if not _pairs(v) and advantage is None:
        return f"algorithm.advantage=null, but completions that are sampled need one of {', '.join(ADVANTAGES)}"
    return None


@rule("algorithm.action", "algorithm.advantage")
def _tokens_have_values(v: Values) -> str | None:
    action, advantage = v["algorithm.action"], v["algorithm.advantage"]
    if _pairs(v) or (action == "token") == (advantage == "gae"):
        return None
    if action == "token":
        return (
            f"algorithm.advantage={advantage} is one number a completion, but algorithm.action=token needs one a "
            f"token; set algorithm.advantage=gae or algorithm.action=sequence"
        )
    return "algorithm.advantage=gae is one number a token; set algorithm.action=token"


@rule("algorithm.name", "algorithm.advantage", "algorithm.group_size")
def _siblings(v: Values) -> str | None:
    name, group, advantage = v["algorithm.name"], v["algorithm.group_size"], v["algorithm.advantage"]
    if advantage not in SIBLINGS or group >= 2:
        return None
    return (
        f"algorithm.group_size={group}, but algorithm={name} compares a completion with its siblings and needs at "
        f"least 2; set algorithm.group_size=4, or algorithm=reinforce for one completion a prompt"
    )


@rule("algorithm.action", "algorithm.group_size", "algorithm.name")
def _two_of_a_pair(v: Values) -> str | None:
    if not _pairs(v) or v["algorithm.group_size"] == 2:
        return None
    group, name = v["algorithm.group_size"], v["algorithm.name"]
    return f"algorithm.group_size={group}, but algorithm={name} learns from pairs; set algorithm.group_size=2"


@rule("algorithm.rollout_batch_size", "algorithm.group_size")
def _whole_groups(v: Values) -> str | None:
    return _multiple(v, "algorithm.rollout_batch_size", v["algorithm.rollout_batch_size"])


@rule("algorithm.step_batch_size", "algorithm.rollout_batch_size", "algorithm.group_size")
def _whole_groups_an_update(v: Values) -> str | None:
    size, rollout = v["algorithm.step_batch_size"], v["algorithm.rollout_batch_size"]
    if size is None:
        return None
    if size > rollout or rollout % size:
        return (
            f"algorithm.step_batch_size={size}, but it must divide algorithm.rollout_batch_size={rollout}; "
            f"set algorithm.step_batch_size=null for one update with all of it"
        )
    return _multiple(v, "algorithm.step_batch_size", size)


def _multiple(v: Values, key: str, batch: int) -> str | None:
    group = v["algorithm.group_size"]
    if batch % group == 0:
        return None
    fits = max(group, batch - batch % group)
    return f"{key}={batch}, but it must be a multiple of algorithm.group_size={group}; set {key}={fits}"


@rule("algorithm.ratio", *UPDATES)
def _a_ratio_needs_updates(v: Values) -> str | None:
    if v["algorithm.ratio"] == "none" or _updates(v) >= 2:
        return None
    return (
        f"algorithm.ratio={v['algorithm.ratio']}, but a rollout batch makes a single update, in which the ratio is 1 "
        f"and nothing can be clipped; set algorithm.epochs_per_rollout=2, or a smaller algorithm.step_batch_size, or "
        f"algorithm.ratio=none algorithm.clip=null algorithm.ratio_cap=null"
    )


@rule("algorithm.ratio", "algorithm.clip", "algorithm.clip_high", "algorithm.ratio_cap")
def _clips_clip_a_ratio(v: Values) -> str | None:
    ratio, clip, high, cap = (v[f"algorithm.{name}"] for name in ("ratio", "clip", "clip_high", "ratio_cap"))
    if ratio == "none" and (clip is not None or cap is not None):
        name = "clip" if clip is not None else "ratio_cap"
        return f"algorithm.{name}={v[f'algorithm.{name}']}, but algorithm.ratio=none; set algorithm.{name}=null"
    if clip is not None and cap is not None:
        return f"algorithm.clip={clip} and algorithm.ratio_cap={cap} both bound the ratio; set one of them to null"
    if clip is None and high is not None:
        return f"algorithm.clip_high={high}, but algorithm.clip=null; set algorithm.clip, e.g. 0.2"
    return None


@rule("algorithm.ratio", "algorithm.loss_agg", "algorithm.action")
def _one_term_a_completion(v: Values) -> str | None:
    ratio, aggregation = v["algorithm.ratio"], v["algorithm.loss_agg"]
    if ratio in ("sequence", "sequence_mean") and v["algorithm.action"] == "token":
        return (
            f"algorithm.ratio={ratio} is one number a completion, but algorithm.action=token; set algorithm.ratio=token"
        )
    wanted = {"sequence": "sequence_sum", "sequence_mean": "sequence_mean"}.get(ratio, aggregation)
    if aggregation == wanted:
        return None
    return (
        f"algorithm.loss_agg={aggregation}, but with algorithm.ratio={ratio} a completion has a single term; "
        f"set algorithm.loss_agg={wanted}"
    )


@rule("algorithm.name", "algorithm.surrogate", *(f"algorithm.{name}" for name in IDLE), "algorithm.loss_agg")
def _likelihood_has_no_ratio(v: Values) -> str | None:
    if v["algorithm.surrogate"] == "reinforce":
        return None
    busy = {name: v[f"algorithm.{name}"] for name, idle in IDLE.items() if v[f"algorithm.{name}"] != idle}
    if v["algorithm.loss_agg"] != "sequence_sum":
        busy["loss_agg"] = v["algorithm.loss_agg"]
    if not busy:
        return None
    name, value = next(iter(busy.items()))
    idle = {**IDLE, "loss_agg": "sequence_sum"}[name]
    shown = "null" if idle is None else str(idle).lower()
    return (
        f"algorithm.{name}={str(value).lower()}, but algorithm={v['algorithm.name']} is a likelihood "
        f"(algorithm.surrogate={v['algorithm.surrogate']}) and does not read it; set algorithm.{name}={shown}"
    )


@rule("algorithm.action", "algorithm.surrogate", "algorithm.advantage")
def _likelihood_of_weights(v: Values) -> str | None:
    if v["algorithm.surrogate"] != "nll" or v["algorithm.advantage"] == "best_of_group" or _pairs(v):
        return None
    if ":" in str(v["algorithm.advantage"]):
        return None
    return (
        f"algorithm.surrogate=nll imitates completions with a weight of at least 0, but "
        f"algorithm.advantage={v['algorithm.advantage']} has negative ones; set algorithm.advantage=best_of_group"
    )


@rule("algorithm.kl_coef", "algorithm.kl.target", "algorithm.action")
def _adapted_from_something(v: Values) -> str | None:
    if v["algorithm.kl.target"] is None or v["algorithm.kl_coef"] > 0 or _pairs(v):
        return None
    return (
        f"algorithm.kl.target={v['algorithm.kl.target']}, but algorithm.kl_coef=0 cannot be adapted and loads no "
        f"reference; set algorithm.kl_coef, e.g. 0.05"
    )


@rule("algorithm.kl.target", "algorithm.kl.horizon", "algorithm.rollout_batch_size")
def _slowly_adapted(v: Values) -> str | None:
    horizon, batch = v["algorithm.kl.horizon"], v["algorithm.rollout_batch_size"]
    if v["algorithm.kl.target"] is None or horizon > 0.2 * batch:
        return None
    return (
        f"algorithm.kl.horizon={horizon}, but a step of {batch} completions could turn kl_coef negative; set it above "
        f"{0.2 * batch:g}, e.g. 10000"
    )


@rule("algorithm.surrogate", "algorithm.dpo.label_smoothing")
def _smoothing_is_for_dpo(v: Values) -> str | None:
    if v["algorithm.surrogate"] != "ipo" or v["algorithm.dpo.label_smoothing"] == 0:
        return None
    return "algorithm.dpo.label_smoothing is for surrogate=dpo, but algorithm.surrogate=ipo; set it to 0"


@rule("algorithm.missing_eos", "algorithm.missing_eos_penalty")
def _replaced_by_something(v: Values) -> str | None:
    if v["algorithm.missing_eos"] != "replace" or v["algorithm.missing_eos_penalty"] is not None:
        return None
    return (
        "algorithm.missing_eos=replace, but algorithm.missing_eos_penalty=null says nothing to replace the reward "
        "with; set algorithm.missing_eos_penalty=1"
    )


@rule("algorithm.name", "algorithm.advantage", "algorithm.kl.place", "algorithm.resample_equal_rewards")
def _equal_rewards_can_be_dropped(v: Values) -> str | None:
    times, advantage = v["algorithm.resample_equal_rewards"], v["algorithm.advantage"]
    if times == 0 or (advantage in ("group_mean", "group_standardised") and v["algorithm.kl.place"] == "loss"):
        return None
    reason = "completions with equal raw rewards still differ in their KL, and dropping them would bias the gradient"
    if advantage in ("running_mean", "gae"):
        reason = "its baseline does not come from the group, so that equal rewards teach as much as others"
    return (
        f"algorithm.resample_equal_rewards={times}, but with algorithm={v['algorithm.name']} nothing may be dropped: "
        f"{reason}; set algorithm.resample_equal_rewards=0"
    )


@rule("algorithm.overlong_buffer", "algorithm.max_new_tokens")
def _a_slope_within_the_limit(v: Values) -> str | None:
    buffer, longest = v["algorithm.overlong_buffer"], v["algorithm.max_new_tokens"]
    if buffer is None or buffer <= longest:
        return None
    return f"algorithm.overlong_buffer={buffer}, but it must be at most algorithm.max_new_tokens={longest}"


@rule("algorithm.advantage", "algorithm.rollout_batch_size")
def _a_first_batch_to_compare(v: Values) -> str | None:
    if v["algorithm.advantage"] != "running_mean" or v["algorithm.rollout_batch_size"] >= 2:
        return None
    return (
        "algorithm.rollout_batch_size=1, but the first batch of algorithm.advantage=running_mean has no past and "
        "compares its completions with each other; set algorithm.rollout_batch_size=2 or more"
    )


@rule("algorithm.keep_best", "algorithm.eval_every")
def _best_of_what_is_measured(v: Values) -> str | None:
    metric, every = v["algorithm.keep_best"], v["algorithm.eval_every"]
    if metric is None:
        return None
    name = metric.removeprefix("-")
    if "gold" in name:
        return f"algorithm.keep_best={metric}, but the gold reward is for judging alone; set validation/proxy_reward"
    if not name.startswith("validation/"):
        return f"algorithm.keep_best={metric} is not measured on validation prompts; set e.g. validation/proxy_reward"
    if every == 0:
        return f"algorithm.keep_best={metric}, but algorithm.eval_every=0 measures the last step alone; set it above 0"
    return None
