"""Policy: the SFT model, optimised against the reward, or on preference pairs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from rloo_core.algorithms.choices import needs_critic, needs_reference, own_advantage, updates_per_step
from rloo_core.algorithms.collecting import Collector
from rloo_core.algorithms.dpo import PreferenceOptimisation
from rloo_core.algorithms.online import OnlineMethod, ReferenceLogprobs
from rloo_core.cpu_products import slow_bfloat16
from rloo_core.critics import Critic
from rloo_core.evaluation.assessment import assess, means
from rloo_core.evaluation.figures import reward_and_kl
from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.models import add_lora, merge_lora, save_model
from rloo_core.observer import Observer
from rloo_core.optimization import Part, checkpoint_gradients
from rloo_core.reward_models import RewardModel, new_reward_model
from rloo_core.rewards import CombinedReward, Reward
from rloo_core.rollout import Truncation
from rloo_core.settings import AlgorithmSettings, PolicyStageSettings
from rloo_core.stages.common import (
    MODEL,
    check_context,
    given_completions,
    gold_reward,
    make_sampling,
    prompts_of,
    sampling_dtype,
    stage_layout,
    stage_policy,
    stage_tokenizer,
    use_threads,
)
from rloo_core.stages.rewards import RewardSource, stage_reward, stage_reward_model
from rloo_core.tokenization import same_tokens
from rloo_core.trainer import Method, TrainingLoop, make_accelerator


@dataclass(frozen=True)
class Bench:
    """What every method is built from."""

    settings: PolicyStageSettings
    inputs: Mapping[str, Path]
    tokenizer: PreTrainedTokenizerBase
    loop: TrainingLoop
    layout: Layout
    observer: Observer

    @property
    def algorithm(self) -> AlgorithmSettings:
        return self.settings.algorithm

    @property
    def policy(self) -> Any:
        """The model in training, without wrappers: what samples."""
        return self.loop.accelerator.unwrap_model(self.loop.model)

    def sampling(self) -> Any:
        own = self.algorithm
        return make_sampling(
            self.policy,
            self.tokenizer,
            temperature=own.temperature,
            max_new_tokens=own.max_new_tokens,
            compute=self.settings.compute,
            layout=self.layout,
            truncation=Truncation(own.top_k, own.top_p, own.min_p),
            stop=own.stop,
            dtype=sampling_dtype(self.settings.compute),
        )


def run(settings: PolicyStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer) -> dict[str, float]:
    """Optimise the SFT model on `prompts` or `preferences`; leaves `model/`, which `AutoModelForCausalLM` loads.

    Returns:
        Metrics of the step whose weights are left (`algorithm.keep_best`, else the last one), among them reward and KL
        on held-out prompts.
    """
    use_threads(settings.compute)
    own = settings.algorithm
    tokenizer = stage_tokenizer(inputs)
    accelerator = make_accelerator(settings.compute)
    sft = stage_policy(inputs["sft"], tokenizer, settings.compute, accelerator.device)
    layout = stage_layout(sft, settings.compute, observer)
    if settings.compute.gradient_checkpointing:
        checkpoint_gradients(sft)
    model = add_lora(sft, settings.model.lora, own.seed)
    loop = TrainingLoop(
        accelerator, model, own, own.steps, out, observer, updates_per_step=updates_per_step(own),
        critic=_critic(settings, inputs, tokenizer, accelerator.device, observer),
    )  # fmt: skip
    bench = Bench(settings, inputs, tokenizer, loop, layout, observer)
    loop.run(_pairs_method(bench) if own.action == "pair" else _online_method(bench))
    observer.figure("reward_and_kl", reward_and_kl(loop.history()))
    summary = loop.take_best()
    if loop.accelerator.is_main_process:
        save_model(merge_lora(bench.policy), tokenizer, out / MODEL)
    return summary


def _online_method(bench: Bench) -> Method:
    own, chat, loop = bench.algorithm, bench.settings.model.chat_template, bench.loop
    train = prompts_of(bench.inputs, "train", bench.tokenizer, chat)
    longest = max(map(len, train.ids)) + own.max_new_tokens
    check_context(bench.policy, longest, "data.max_prompt_tokens or algorithm.max_new_tokens")
    _warn_of_truncation(own, bench.observer)
    if slow := slow_bfloat16(bench.settings.compute.sampling_precision, loop.accelerator.device):
        bench.observer.message(slow)
    reward = _reward(bench)
    reference = _reference(bench)(own.temperature) if needs_reference(own) else None
    collector = Collector(bench.policy, reward, train.ids, train.rows, bench.sampling(), own, loop.processes)
    return OnlineMethod(
        settings=own,
        policy=loop.model,
        collector=collector,
        reference=reference,
        critic=loop.parts[1].model if needs_critic(own) else None,
        layout=bench.layout,
        processes=loop.processes,
        monitor=_monitor(bench, reward, reference),
        own_advantage=own_advantage(own),
    )


def _pairs_method(bench: Bench) -> Method:
    pairs = {
        split: given_completions(
            bench.inputs, "preferences", split, ["chosen", "rejected"],
            bench.tokenizer, bench.settings.model.chat_template, bench.settings.compute,
            bench.layout, bench.policy.config,
        )
        for split in ("train", "validation")
    }  # fmt: skip
    if len(pairs["train"]) == 0:
        raise ValueError("no preference pairs to learn from; bring a table `preferences`, or set algorithm=rloo")
    check_context(bench.policy, max(part.longest_row() for part in pairs.values()), "data.max_total_tokens")
    reference = _reference(bench)
    return PreferenceOptimisation(
        settings=bench.algorithm,
        policy=bench.loop.model,
        reference=reference(1.0),
        train=pairs["train"],
        validation=pairs["validation"],
        layout=bench.layout,
        processes=bench.loop.processes,
        monitor=_monitor(bench, _reward(bench), reference(bench.algorithm.temperature)),
    )


def _warn_of_truncation(own: AlgorithmSettings, observer: Observer) -> None:
    used = [name for name in ("top_k", "top_p", "min_p") if getattr(own, name) is not None]
    if used:
        observer.message(
            f"completions are sampled with {', '.join(used)}, but log-probs are of the untruncated distribution: the "
            f"gradient is biased and the KL may come out negative (algorithm.{used[0]}=null samples from the policy)"
        )


def _monitor(bench: Bench, reward: Reward, reference: ReferenceLogprobs | None) -> Callable[[], dict[str, float]]:
    """Measures of the policy's own completions on validation prompts: the same for every method."""
    own = bench.algorithm
    held_out = prompts_of(
        bench.inputs, "validation", bench.tokenizer, bench.settings.model.chat_template, own.eval_prompts
    )
    sampling = bench.sampling()
    measure = partial(
        assess,
        bench.policy,
        reference,
        held_out,
        bench.tokenizer,
        sampling,
        samples=1,
        seed=own.seed,
        proxy=reward,
        gold=gold_reward(held_out, bench.tokenizer, sampling.eos_ids),
        kl_temperature=own.temperature,
    )
    if not held_out.ids:
        return dict
    return lambda: {f"validation/{name}": value for name, value in means(measure().first()).items()}


def _reward(bench: Bench) -> CombinedReward:
    source = RewardSource(
        bench.inputs,
        bench.tokenizer,
        bench.sampling().eos_ids,
        bench.settings.compute,
        partial(_frozen, bench.loop),
        bench.observer,
    )
    return stage_reward(bench.settings.reward, source)


def _critic(
    settings: PolicyStageSettings,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    observer: Observer,
) -> Part | None:
    """A model of its own for the values: the reward model's weights, or the SFT model's with a new head."""
    own = settings.algorithm
    if not needs_critic(own):
        return None
    start: RewardModel
    if own.critic.start == "reward_model":
        start, its_own = stage_reward_model(inputs)
        if not same_tokens(its_own, tokenizer):
            raise ValueError(
                "algorithm.critic.start=reward_model, but the reward model has another tokenizer than the policy, "
                "whose ids the critic reads; set algorithm.critic.start=sft"
            )
    else:
        start = new_reward_model(inputs["sft"] / MODEL, tokenizer, own.seed)
    layout = stage_layout(start.to(device).classifier, settings.compute, observer)
    if settings.compute.gradient_checkpointing:
        checkpoint_gradients(start.classifier)
    return Part("critic", Critic(start, layout), own.critic.learning_rate)


def _reference(bench: Bench) -> Callable[[float], ReferenceLogprobs]:
    """Log-probs at a temperature under the SFT model: the policy without its adapters, or a frozen copy."""
    if bench.settings.model.lora.rank > 0:
        return partial(_without_adapters, bench)
    compute, device = bench.settings.compute, bench.loop.accelerator.device
    start = stage_policy(bench.inputs["sft"], bench.tokenizer, compute, device)
    copy = _frozen(bench.loop, start)
    return lambda temperature: reference_logprobs(copy, temperature, bench.layout)


def _frozen(loop: TrainingLoop, model: Any) -> nn.Module:
    """A model that only looks: on the device, under the same autocast, without a wrapper for gradients."""
    prepared: nn.Module = loop.accelerator.prepare_model(model.requires_grad_(False), evaluation_mode=True)
    return prepared


def _without_adapters(bench: Bench, temperature: float) -> ReferenceLogprobs:
    policy = bench.policy
    plain = reference_logprobs(policy, temperature, bench.layout)

    def logprobs(groups: Any) -> Any:
        with policy.disable_adapter():
            return plain(groups)

    return logprobs
