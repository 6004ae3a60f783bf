"""This library's side of every benchmark, through its public functions."""

import tempfile
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from transformers import AutoModelForSequenceClassification

from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.dpo import PreferenceOptimisation
from rloo_core.algorithms.reward_modelling import RewardModelling
from rloo_core.api import recipe, train_policy
from rloo_core.cpu_memory import kept_memory
from rloo_core.cpu_products import packed_weights
from rloo_core.layout import choose_layout
from rloo_core.logprobs import completion_logprobs, reference_logprobs
from rloo_core.optimization import Part, make_optimizer
from rloo_core.processes import Processes
from rloo_core.reward_models import RewardModel
from rloo_core.rollout import Sampling, sample_completions, uniform_numbers
from rloo_core.token_choice import EVERY_TOKEN, Truncation, choose_tokens
from rloo_core.trainer import Method, TrainingLoop, make_accelerator
from rloo_core.types import CompletionGroups
from tests.benchmarks.cases import EOS, PAD, Case, reward
from tests.benchmarks.meter import Meter, matmul_rate

LEARNING_RATE, KL_COEF, MAX_TOKENS = 1e-6, 0.05, 16384
CHOICES = {
    "plain": EVERY_TOKEN, "top_k": Truncation(top_k=50), "top_p": Truncation(top_p=0.95),
    "min_p": Truncation(min_p=0.05),
}  # fmt: skip


def measure(case: Case) -> dict[str, object]:
    """Seconds a step and memory; of a floor, rates of a matrix product, too."""
    if case.kind == "choice":
        return choice_seconds(case)
    if case.kind == "floor":
        return _floor(case)
    meter: Meter = globals()[f"_{case.kind}"](case)
    return meter.report()


def _compute(case: Case):  # type: ignore[no-untyped-def]
    from rloo_core.api import _yaml
    from rloo_core.settings import ComputeSettings

    sampling = "bfloat16" if case.low_precision else "float32"
    values = {"device": "cpu", "threads": 1, "max_tokens_per_batch": MAX_TOKENS, "sampling_precision": sampling}
    return ComputeSettings.model_validate(_yaml("compute", "cpu") | values)


def _algorithm(name: str, case: Case):  # type: ignore[no-untyped-def]
    return recipe(
        name, steps=case.steps, rollout_batch_size=case.prompts * case.group_size, learning_rate=LEARNING_RATE,
        group_size=case.group_size, max_new_tokens=case.new_tokens, eval_every=0, checkpoint_every=0,
        **({"kl_coef": KL_COEF, "missing_eos_penalty": None} if name == "rloo" else {}),
    )  # fmt: skip


def _step(case: Case) -> Meter:
    model, tokenizer, meter = case.shape.model(), case.shape.tokenizer(), Meter()
    with tempfile.TemporaryDirectory() as directory:
        train_policy(
            model, tokenizer, case.texts(), reward, _algorithm("rloo", case), directory,
            compute=_compute(case), observer=meter,
        )  # fmt: skip
    return meter


def _sampler(case: Case) -> Meter:
    model, prompts = case.shape.model(), case.prompt_ids()
    layout, _ = choose_layout(model.base_model, "auto")
    sampling = Sampling(1.0, case.new_tokens, (EOS,), PAD, MAX_TOKENS, layout=layout)
    if case.low_precision:
        sampling = replace(sampling, dtype=torch.bfloat16)
    meter = Meter()
    for step in range(case.steps):
        keys = [(step, p, k) for p in range(case.prompts) for k in range(case.group_size)]
        meter.start()
        uniform = uniform_numbers(0, "benchmark", keys, case.new_tokens)
        sample_completions(model, prompts, case.group_size, sampling, uniform)
        meter.stop()
    return meter


@torch.no_grad()
def choice_seconds(case: Case) -> dict[str, object]:
    """Processor time of a decoding step's head product, as the sampler computes it, and of drawing its tokens.

    Logits have a standard deviation of 3, about a language model's. Turn and turn about; the first is not counted.
    """
    rows, generator = case.prompts * case.group_size, torch.Generator().manual_seed(0)
    head = torch.nn.Linear(case.shape.hidden, case.shape.vocabulary, bias=False)
    torch.nn.init.normal_(head.weight, std=3 / case.shape.hidden**0.5, generator=generator)
    hidden = torch.randn(rows, case.shape.hidden, generator=generator)
    uniform = torch.rand(rows, dtype=torch.float64, generator=generator)
    found: dict[str, list[float]] = {name: [] for name in ("head", *CHOICES)}
    with packed_weights(head, rows):
        logits = head(hidden)
        calls = {"head": lambda: head(hidden)} | {
            name: partial(choose_tokens, logits, 1.0, uniform, truncation) for name, truncation in CHOICES.items()
        }
        for _ in range(case.steps):
            for name, call in calls.items():
                started = time.process_time()
                call()
                found[name].append(time.process_time() - started)
    return {name: seconds[1:] for name, seconds in found.items()}


@kept_memory()
def _floor(case: Case) -> dict[str, object]:
    """Reference pass and update of completions that are given, with memory as in the training loop.

    The machine's speed changes from minute to minute: each step's `rates` is measured right before and after it.
    """
    policy, frozen = case.shape.model(), case.shape.model().requires_grad_(False)
    layout, _ = choose_layout(policy.base_model, "auto")
    groups = CompletionGroups.from_ids(case.prompt_ids(), case.completion_ids(), PAD)
    reference = reference_logprobs(frozen, 1.0, layout)
    optimizer = make_optimizer([Part("policy", policy, LEARNING_RATE)], _algorithm("rloo", case))
    meter, rates = Meter(), [matmul_rate()]
    for _ in range(case.steps):
        meter.start()
        log_ratio = completion_logprobs(policy, groups, temperature=1.0, layout=layout).logprobs - reference(groups)
        log_ratio.sum().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        meter.stop()
        rates.append(matmul_rate())
    around = [(before + after) / 2 for before, after in pairwise(rates)]
    return {**meter.report(), "rates": around[1:]}


def floor_seconds(case: Case, rate: float) -> float:
    """Time of the matrix products of reference pass and update, the prompt counted once.

    A pass without gradient multiplies each token with each weight once, an update three times. Attention is left out.
    """
    completion = case.prompts * case.group_size * case.new_tokens
    tokens = sum(map(len, case.prompt_ids())) + completion
    forward = 2 * case.shape.trunk * tokens + 2 * case.shape.hidden * case.shape.vocabulary * completion
    return 4 * forward / rate


def _pairs(case: Case) -> GivenCompletions:
    return GivenCompletions(case.prompt_ids(), case.completion_ids(), PAD, MAX_TOKENS)


def _run(case: Case, model: torch.nn.Module, method) -> Meter:  # type: ignore[no-untyped-def]
    meter = Meter()
    with tempfile.TemporaryDirectory() as directory:
        from pathlib import Path

        settings = _algorithm("rloo", case)
        loop = TrainingLoop(make_accelerator(_compute(case)), model, settings, case.steps, Path(directory), meter)
        made: Method = method(loop)
        loop.run(made)
    return meter


def _reward_model(case: Case) -> Meter:
    torch.manual_seed(0)
    config = case.shape.config()
    config.num_labels = 1
    classifier = AutoModelForSequenceClassification.from_config(config).eval()
    layout, _ = choose_layout(classifier.base_model, "auto")
    pairs, empty = _pairs(case), GivenCompletions([], [], PAD, MAX_TOKENS)
    return _run(
        case, RewardModel(classifier, layout), lambda loop: RewardModelling(loop.model, pairs, empty, case.prompts, 0)
    )


def _dpo(case: Case) -> Meter:
    policy, frozen = case.shape.model(), case.shape.model().requires_grad_(False)
    layout, _ = choose_layout(policy.base_model, "auto")
    settings, pairs, empty = _algorithm("dpo", case), _pairs(case), GivenCompletions([], [], PAD, MAX_TOKENS)
    return _run(
        case,
        policy,
        lambda loop: PreferenceOptimisation(
            settings, loop.model, reference_logprobs(frozen, 1.0, layout), pairs, empty, layout, Processes(), dict
        ),
    )
