"""Values that are of the right type and can still only be slips, each with the bound it breaks."""

import os
from collections.abc import Callable

from rloo_core.rules import Values, rule

MOST_EPOCHS = 10_000
MOST_THREADS = 1024
# what decides which weights a stage leaves; the policy's is in `rloo_core.algorithms.contradictions`
KEPT_BY = {
    "sft": ("-validation/loss",),
    "reward_model": ("validation/accuracy", "validation/margin/mean", "-validation/loss"),
}
ALWAYS_FINE = 8  # threads; conf/compute/gpu.yaml has them, and composes on any machine


def most_threads() -> int:
    """Threads beyond which a machine only loses time: four a CPU, though never fewer than `ALWAYS_FINE`."""
    return min(MOST_THREADS, max(ALWAYS_FINE, 4 * (os.cpu_count() or 1)))


@rule("compute.threads")
def _threads_of_this_machine(v: Values) -> str | None:
    threads, most = v["compute.threads"], most_threads()
    if threads <= most:
        return None
    return f"compute.threads={threads}, but it must be at most {most} on this machine of {os.cpu_count()} CPUs"


@rule("compute.processes", "compute.threads", "compute.device")
def _processes_of_this_machine(v: Values) -> str | None:
    processes, most = v["compute.processes"], max(1, most_threads() // v["compute.threads"])
    if processes == 1 or processes <= most or v["compute.device"] == "cuda":
        return None
    return (
        f"compute.processes={processes}, but it must be at most {most} with compute.threads={v['compute.threads']} on "
        f"this machine of {os.cpu_count()} CPUs"
    )


@rule("compute.processes", "algorithm.rollout_batch_size", "algorithm.group_size", "algorithm.action")
def _a_prompt_for_every_process(v: Values) -> str | None:
    processes, group = v["compute.processes"], v["algorithm.group_size"]
    if v["algorithm.action"] == "pair" or v["algorithm.rollout_batch_size"] // group >= processes:
        return None
    return (
        f"compute.processes={processes}, but algorithm.rollout_batch_size={v['algorithm.rollout_batch_size']} holds "
        f"only {v['algorithm.rollout_batch_size'] // group} prompts of {group} completions; set "
        f"algorithm.rollout_batch_size to at least {processes * group}"
    )


@rule("model.lora.rank", "model.lora.target_modules")
def _adapters_have_targets(v: Values) -> str | None:
    if v["model.lora.rank"] == 0 or v["model.lora.target_modules"]:
        return None
    return (
        f"model.lora.target_modules=[], but model.lora.rank={v['model.lora.rank']} needs layers to adapt; set "
        f"model.lora.target_modules=all-linear, or model.lora.rank=0 to train all weights"
    )


def _below_one(key: str) -> Callable[[Values], str | None]:
    """AdamW divides by 1 - beta2 ** step."""
    return lambda v: None if v[key] < 1 else f"{key}={v[key]:g}, but it must be below 1, e.g. {key}=0.999"


def _few_epochs(key: str) -> Callable[[Values], str | None]:
    return lambda v: None if v[key] <= MOST_EPOCHS else f"{key}={v[key]:g}, but it must be at most {MOST_EPOCHS}"


def _enough_for_an_interval(key: str) -> Callable[[Values], str | None]:
    def check(v: Values) -> str | None:
        if v["data.source"] != "synthetic" or v[key] >= 2:
            return None
        return f"{key}={v[key]}, but it must be at least 2: one row has no spread to estimate"

    return check


def _best_of(section: str, measured: tuple[str, ...]) -> Callable[[Values], str | None]:
    """Which way is better is known: a sign that was forgotten would keep the worst model."""
    key, every = f"{section}.keep_best", f"{section}.eval_every"

    def check(v: Values) -> str | None:
        if v[key] is None:
            return None
        if v[key] not in measured:
            return f"{key}={v[key]}, but it must be null or {' or '.join(measured)} (a minus: the lowest is best)"
        if v[every] == 0:
            return f"{key}={v[key]}, but {every}=0 measures the last update alone; set it above 0"
        return None

    return check


for _section in ("sft", "reward_model", "algorithm"):
    rule(f"{_section}.adam_beta2")(_below_one(f"{_section}.adam_beta2"))
for _section in ("sft", "reward_model"):
    rule(f"{_section}.epochs")(_few_epochs(f"{_section}.epochs"))
for _section, _measured in KEPT_BY.items():
    rule(f"{_section}.keep_best", f"{_section}.eval_every")(_best_of(_section, _measured))
for _split in ("validation", "test"):
    rule("data.source", f"data.synthetic.{_split}")(_enough_for_an_interval(f"data.synthetic.{_split}"))
