"""The algorithms without the pipeline: a model, prompts and a reward in, a trained model out.

    recipe        the settings of an algorithm, as `conf/algorithm/` has them, with changes
    train_policy  one training run of an online method

`rloo_core.advantages`, `rloo_core.kl`, `rloo_core.losses` and `rloo_core.logprobs` are the mathematics by itself.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rloo_core.algorithms import contradictions
from rloo_core.algorithms.choices import needs_critic, needs_reference, own_advantage, updates_per_step
from rloo_core.algorithms.collecting import Collector
from rloo_core.algorithms.online import OnlineMethod, ReferenceLogprobs
from rloo_core.attention import use_attention
from rloo_core.cpu_products import slow_bfloat16
from rloo_core.critics import Critic
from rloo_core.layout import Layout, tried_layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.models import disable_dropout, fit_vocabulary
from rloo_core.observer import Observer, SilentObserver
from rloo_core.optimization import Part, checkpoint_gradients
from rloo_core.reward_models import RewardModel
from rloo_core.rewards import CombinedReward, FunctionReward, RewardFunction, Row, Term, term_names
from rloo_core.rollout import Sampling, Truncation, stop_strings
from rloo_core.rules import flatten
from rloo_core.settings import AlgorithmSettings, ComputeSettings
from rloo_core.tokenization import encode_prompt, ensure_pad_token, eos_token_ids
from rloo_core.trainer import TrainingLoop, make_accelerator

__all__ = ["recipe", "train_policy"]

Prompt = str | Sequence[Mapping[str, str]] | Row


def recipe(name: str, *, seed: int = 0, **changes: Any) -> AlgorithmSettings:
    """Settings of an algorithm: the values of `conf/algorithm/NAME.yaml`, which says what each means, with changes.

    Args:
        name: rloo, reinforce, vanilla_pg, ppo, raft, grpo, dr_grpo, gspo or dapo.
        seed: Of prompt order and sampling.
        changes: Settings by name; those of a section as a dict, e.g. `kl={"target": 3.0}`.

    Raises:
        ValueError: If there is no such recipe or setting, a value is out of range, or settings contradict each other.
    """
    values = _merged(_yaml("algorithm", name), changes)
    settings = AlgorithmSettings.model_validate({**values, "seed": seed})
    _refuse_contradictions(settings)
    return settings


def train_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    rewards: RewardFunction | Sequence[RewardFunction] | Mapping[RewardFunction, float],
    algorithm: AlgorithmSettings,
    directory: str | Path,
    *,
    chat_template: bool = False,
    critic: RewardModel | None = None,
    compute: ComputeSettings | None = None,
    observer: Observer | None = None,
) -> list[dict[str, float]]:
    """Optimise a causal language model against rewards, in place.

    Args:
        model: Changed in place; its dropout is switched off. The reference is a frozen copy, where KL costs something.
        tokenizer: Gets a pad token of its own if it has none.
        prompts: Texts, lists of chat messages, or rows with `prompt` and further columns that the rewards are given.
        rewards: A function `f(prompts, completions, **columns) -> list[float | None]` (sync or async), or several with
            their weights, or a list of them.
        algorithm: From `recipe`.
        directory: Checkpoints and `metrics.jsonl` go there. A run that was killed goes on from what it finds.
        chat_template: Whether text prompts are a user's turn of the tokenizer's chat template.
        critic: What ppo and vanilla_pg start their critic from.
        compute: Device, precision, batches; by default `conf/compute/cpu.yaml`, device auto.
        observer: Receives metrics and progress.

    Returns:
        Metrics of every step, in order: rewards in reward units, KL in nats a completion, lengths in tokens.

    Raises:
        ValueError: If the algorithm learns from pairs or misses its critic, a reward function cannot be called or
            returns what is no reward, or training diverges.
    """
    if algorithm.action == "pair":
        raise ValueError(
            "train_policy samples completions; algorithm=dpo learns from pairs: use the pipeline (rloo run)"
        )
    _refuse_contradictions(algorithm)
    if needs_critic(algorithm) and critic is None:
        raise ValueError(f"algorithm {algorithm.name} learns a value function; give what it starts from as `critic`")
    if algorithm.keep_best is not None:
        raise ValueError(
            f"algorithm.keep_best={algorithm.keep_best}, but train_policy has no validation prompts to measure; leave "
            f"it null, or use the pipeline (rloo run)"
        )
    compute = compute or ComputeSettings.model_validate(_yaml("compute", "cpu") | {"device": "auto"})
    if algorithm.sampler_cap is not None and compute.sampling_precision == "float32":
        raise ValueError(contradictions.SAMPLED_EXACTLY.format(algorithm.sampler_cap))
    watch = observer or SilentObserver()
    torch.set_num_threads(compute.threads)
    ensure_pad_token(tokenizer)
    fit_vocabulary(model, tokenizer)
    disable_dropout(model)
    accelerator = make_accelerator(compute)
    layout = _layout(model, accelerator.device, compute, watch)
    if slow := slow_bfloat16(compute.sampling_precision, accelerator.device):
        watch.message(slow)
    start = copy.deepcopy(model) if needs_reference(algorithm) else None
    if compute.gradient_checkpointing:
        checkpoint_gradients(model)
    _refuse_another_run(Path(directory), algorithm)
    loop = TrainingLoop(
        accelerator, model, algorithm, algorithm.steps, Path(directory), watch,
        updates_per_step=updates_per_step(algorithm),
        critic=_critic(critic, algorithm, accelerator.device, compute, watch),
    )  # fmt: skip
    collector = _collector(loop, tokenizer, prompts, chat_template, rewards, algorithm, compute, layout)
    reference = None if start is None else _frozen(loop, start, algorithm.temperature, layout)
    loop.run(
        OnlineMethod(
            settings=algorithm,
            policy=loop.model,
            collector=collector,
            reference=reference,
            critic=loop.parts[1].model if critic is not None else None,
            layout=layout,
            processes=loop.processes,
            monitor=dict,
            own_advantage=own_advantage(algorithm),
        )
    )
    return loop.history()


def _layout(model: PreTrainedModel, device: torch.device, compute: ComputeSettings, observer: Observer) -> Layout:
    """The layout a model agrees with on the device, with the attention that is asked for."""
    plain: Any = model  # `to` is wrapped so that its type is lost
    plain.to(device)
    use_attention(model, compute.attention)
    return tried_layout(plain.base_model, compute.layout, observer.message)


def _critic(
    start: RewardModel | None,
    algorithm: AlgorithmSettings,
    device: torch.device,
    compute: ComputeSettings,
    observer: Observer,
) -> Part | None:
    """The critic in the layout its own decoder agrees with: it need not be a model like the policy."""
    if start is None:
        return None
    layout = _layout(start.to(device).classifier, device, compute, observer)
    return Part("critic", Critic(start, layout), algorithm.critic.learning_rate)


def _refuse_contradictions(algorithm: AlgorithmSettings) -> None:
    """The rules that `rloo config` applies, on the algorithm's settings alone."""
    problems = contradictions.found(flatten(algorithm.model_dump(), "algorithm."))
    if problems:
        raise ValueError("; ".join(problems))


def _refuse_another_run(directory: Path, algorithm: AlgorithmSettings) -> None:
    """Checkpoints of a run with other settings would be gone on with, and its history taken for this one's."""
    file, own = directory / "settings.json", algorithm.model_dump(mode="json")
    if file.exists() and any((directory / "checkpoints").glob("step-*")):
        before = flatten(json.loads(file.read_text()))
        changed = [name for name, value in flatten(own).items() if before.get(name) != value]
        if changed:
            raise ValueError(
                f"{directory} holds checkpoints of a run with another {', '.join(changed[:3])}; give another "
                f"directory, or delete it"
            )
    directory.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(own, indent=1))


def _collector(
    loop: TrainingLoop,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    chat_template: bool,
    rewards: RewardFunction | Sequence[RewardFunction] | Mapping[RewardFunction, float],
    algorithm: AlgorithmSettings,
    compute: ComputeSettings,
    layout: Layout,
) -> Collector:
    """What samples and scores: the prompts as ids and as rows, and the reward."""
    plain = loop.accelerator.unwrap_model(loop.model)
    if isinstance(prompts, str):
        raise ValueError("`prompts` is a single text; give a list of prompts")
    given: list[Row] = [prompt if isinstance(prompt, Mapping) else {"prompt": prompt} for prompt in prompts]
    if not given:
        raise ValueError("there are no prompts; give at least one")
    for index, row in enumerate(given):
        if row.get("prompt") is None:
            raise ValueError(f"prompt {index} has no `prompt`; it has {', '.join(map(str, row)) or 'no columns'}")
    columns = dict.fromkeys(name for row in given for name in row)
    rows: list[Row] = [{**columns, **row} for row in given]  # a column that a row lacks is None there
    ids = [encode_prompt(tokenizer, row["prompt"], chat_template) for row in rows]
    if not all(ids):
        raise ValueError(
            f"prompt {[bool(one) for one in ids].index(False)} is empty: a completion needs a token to follow"
        )
    ends = eos_token_ids(tokenizer, getattr(plain, "generation_config", None))
    pad: Any = tokenizer.pad_token_id
    sampling = Sampling(
        algorithm.temperature,
        algorithm.max_new_tokens,
        ends,
        int(pad),
        compute.max_tokens_per_batch,
        Truncation(algorithm.top_k, algorithm.top_p, algorithm.min_p),
        stop_strings(algorithm.stop, tokenizer),
        layout=layout,
        dtype=torch.bfloat16 if compute.sampling_precision == "bfloat16" else None,
    )
    reward = _reward(rewards, tokenizer, ends)
    return Collector(plain, reward, ids, rows, sampling, algorithm, loop.processes)


def _frozen(loop: TrainingLoop, reference: Any, temperature: float, layout: Any) -> ReferenceLogprobs:
    prepared = loop.accelerator.prepare_model(reference.requires_grad_(False), evaluation_mode=True)
    return reference_logprobs(prepared, temperature, layout)


def _reward(
    rewards: RewardFunction | Sequence[RewardFunction] | Mapping[RewardFunction, float],
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: Sequence[int],
) -> CombinedReward:
    if isinstance(rewards, Mapping):
        weighted = list(rewards.items())
    else:
        functions: Sequence[Any] = (
            rewards if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]
        )
        weighted = [(function, 1.0) for function in functions]
    if not weighted:
        raise ValueError("no reward given; `rewards` is a function, a list of them, or a dict from them to weights")
    for function, weight in weighted:
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ValueError(f"the weight of reward {function!r:.80} must be a finite number; got {weight!r}")
    scored = [FunctionReward(function, tokenizer, eos_ids) for function, _ in weighted]
    names = term_names([reward.name for reward in scored])
    return CombinedReward([Term(n, r, float(w)) for n, r, (_, w) in zip(names, scored, weighted, strict=True)])


def _yaml(group: str, name: str) -> dict[str, Any]:
    """A file of conf/ with those it builds on, as Hydra would compose them."""
    file = files("rloo_core.recipes") / group / f"{name}.yaml"
    if not file.is_file():
        known = sorted(f.name.removesuffix(".yaml") for f in (files("rloo_core.recipes") / group).iterdir())
        raise ValueError(
            f"there is no {group} {name}; there are {', '.join(k for k in known if not k.startswith('_'))}"
        )
    own: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    base: dict[str, Any] = {}
    for other in own.pop("defaults", []):
        base = _merged(base, own if other == "_self_" else _yaml(group, other))
    return base or own


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The second mapping's values over the first's, section by section."""
    merged = dict(first)
    for key, value in second.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged
