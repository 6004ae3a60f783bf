"""Policy: the SFT model, optimised against the reward."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase

from rloo_core.algorithms.rloo import ReferenceLogprobs, Rloo
from rloo_core.evaluation.assessment import Assessment, assess, means, reference_logprobs
from rloo_core.evaluation.figures import reward_and_kl
from rloo_core.layout import Layout
from rloo_core.models import add_lora, merge_lora, save_model
from rloo_core.observer import Observer
from rloo_core.reward_models import load_reward_model
from rloo_core.rewards import FunctionReward, ModelReward, Reward, load_function
from rloo_core.settings import PolicyStageSettings
from rloo_core.stages.common import (
    MODEL,
    check_context,
    gold_reward,
    make_sampling,
    prompts_of,
    stage_layout,
    stage_policy,
    stage_tokenizer,
    use_threads,
)
from rloo_core.trainer import TrainingLoop, make_accelerator


def run(settings: PolicyStageSettings, inputs: Mapping[str, Path], out: Path, observer: Observer) -> dict[str, float]:
    """Optimise the SFT model on `prompts`; leaves `model/`, which `AutoModelForCausalLM` loads.

    Returns:
        The last step's metrics, among them reward and KL on held-out prompts.
    """
    use_threads(settings.compute)
    own, compute, chat = settings.algorithm, settings.compute, settings.model.chat_template
    tokenizer = stage_tokenizer(inputs)
    sft = stage_policy(inputs["sft"], tokenizer)
    sampling = make_sampling(
        sft, tokenizer, temperature=own.temperature, max_new_tokens=own.max_new_tokens, compute=compute
    )
    train = prompts_of(inputs, "train", tokenizer, chat)
    longest = max(map(len, train.ids)) + own.max_new_tokens
    check_context(sft, longest, "data.max_prompt_tokens or algorithm.max_new_tokens")
    layout = stage_layout(sft.base_model, compute, observer)
    model = add_lora(sft, settings.model.lora, own.seed)
    loop = TrainingLoop(make_accelerator(compute), model, own, own.steps, out, observer)
    reward = _reward(settings, inputs, tokenizer, loop, sampling.eos_ids, observer)
    reference = _reference(settings, inputs, tokenizer, loop, layout)
    held_out = prompts_of(inputs, "validation", tokenizer, chat, own.eval_prompts)
    monitor = partial(
        assess,
        loop.model,
        reference,
        held_out,
        tokenizer,
        sampling,
        samples=1,
        seed=own.seed,
        proxy=reward,
        gold=gold_reward(held_out, tokenizer, sampling.eos_ids),
        kl_temperature=own.temperature,
    )
    method = Rloo(
        policy=loop.model,
        reference=reference if own.kl_coef > 0 else None,
        reward=reward,
        prompts=train.ids,
        rows=train.rows,
        sampling=sampling,
        prompts_per_step=own.rollout_batch_size // own.group_size,
        group_size=own.group_size,
        kl_coef=own.kl_coef,
        missing_eos_penalty=own.missing_eos_penalty or 0.0,
        seed=own.seed,
        layout=layout,
        monitor=lambda: _validation(monitor) if held_out.ids else {},
    )
    loop.run(method)
    observer.figure("reward_and_kl", reward_and_kl(loop.history()))
    save_model(merge_lora(loop.accelerator.unwrap_model(loop.model)), tokenizer, out / MODEL)
    return dict(loop.history()[-1])


def _validation(monitor: Callable[[], Assessment]) -> dict[str, float]:
    return {f"validation/{name}": value for name, value in means(monitor().first()).items()}


def _reward(
    settings: PolicyStageSettings,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    loop: TrainingLoop,
    eos_ids: Sequence[int],
    observer: Observer,
) -> Reward:
    """The user's function, or the reward model, whose architecture need not be the policy's: it is tried on its own."""
    if settings.algorithm.reward_function is not None:
        return FunctionReward(load_function(settings.algorithm.reward_function), tokenizer, eos_ids)
    model = load_reward_model(inputs["reward_model"] / MODEL, tokenizer)
    model.layout = stage_layout(model.classifier.base_model, settings.compute, observer)
    prepared: nn.Module = loop.accelerator.prepare_model(model, evaluation_mode=True)
    return ModelReward(prepared, settings.compute.max_tokens_per_batch)


def _reference(
    settings: PolicyStageSettings,
    inputs: Mapping[str, Path],
    tokenizer: PreTrainedTokenizerBase,
    loop: TrainingLoop,
    layout: Layout,
) -> ReferenceLogprobs | None:
    """Log-probs under the SFT model: the policy without its adapters, or a frozen copy; none where KL is free."""
    own = settings.algorithm
    if own.kl_coef == 0:
        return None
    if settings.model.lora.rank > 0:
        return _without_adapters(loop, own.temperature, layout)
    copy: Any = stage_policy(inputs["sft"], tokenizer).requires_grad_(False)
    return reference_logprobs(loop.accelerator.prepare_model(copy, evaluation_mode=True), own.temperature, layout)


def _without_adapters(loop: TrainingLoop, temperature: float, layout: Layout) -> ReferenceLogprobs:
    policy: Any = loop.accelerator.unwrap_model(loop.model)
    disable: Callable[[], Any] = policy.disable_adapter
    plain = reference_logprobs(loop.model, temperature, layout)

    def logprobs(groups: Any) -> Any:
        with disable():
            return plain(groups)

    return logprobs
