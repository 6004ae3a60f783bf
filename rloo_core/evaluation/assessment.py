"""Completions of a policy on given prompts, each with everything that is measured of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rloo_core.batching import token_budget_batches
from rloo_core.kl import sequence_kl
from rloo_core.logprobs import completion_logprobs
from rloo_core.rewards import Reward, Row
from rloo_core.rollout import Sampling, finished, sample_completions, uniform_numbers
from rloo_core.tokenization import decode_completion
from rloo_core.types import CompletionGroups, Ids


@dataclass(frozen=True)
class Prompts:
    """Prompts of a split: token ids and table rows, in the same order."""

    ids: Sequence[Ids]
    rows: Sequence[Row]


@dataclass(frozen=True)
class Assessment:
    """K completions a prompt and their measures, all [P, K] on the CPU."""

    texts: list[list[str]]
    proxy_reward: Tensor
    gold_reward: Tensor | None
    kl: Tensor | None
    length: Tensor
    finished: Tensor

    def first(self) -> dict[str, list[float]]:
        """The measures of each prompt's first completion, one value a prompt."""
        measures = {
            "proxy_reward": self.proxy_reward,
            "gold_reward": self.gold_reward,
            "kl": self.kl,
            "length": self.length,
            "finished": self.finished,
        }
        return {name: values[:, 0].tolist() for name, values in measures.items() if values is not None}


@torch.no_grad()
def assess(
    policy: nn.Module,
    reference: Callable[[CompletionGroups], Tensor] | None,
    prompts: Prompts,
    tokenizer: PreTrainedTokenizerBase,
    sampling: Sampling,
    *,
    samples: int,
    seed: int,
    proxy: Reward,
    gold: Reward | None,
    kl_temperature: float,
    progress: Callable[[int], None] = lambda done: None,
) -> Assessment:
    """Sample completions and measure them.

    Args:
        policy: The model that writes.
        reference: Log-probs under the reference policy; None leaves the KL unmeasured.
        prompts: What to write about.
        tokenizer: Turns ids into text.
        sampling: Temperature (0: greedy), length, special tokens, batch budget.
        samples: K.
        seed: The random numbers of prompt i, sample k depend on (seed, i, k) alone: policies meet the same ones.
        proxy: The reward that training used, or would use.
        gold: The true reward, where it is known.
        kl_temperature: Temperature of the log-probs in the KL, nats summed over the completion.
        progress: Told how many prompts are done.
    """
    device = next(policy.parameters()).device
    parts: list[dict[str, Tensor]] = []
    texts: list[list[str]] = [[] for _ in prompts.ids]
    lengths = [len(ids) + sampling.max_new_tokens for ids in prompts.ids]
    order: list[int] = []
    for batch in token_budget_batches(lengths, sampling.max_tokens, samples):
        keys = [(i, k) for i in batch for k in range(samples)]
        uniform = uniform_numbers(seed, "evaluation", keys, sampling.max_new_tokens)
        groups = sample_completions(policy, [prompts.ids[i] for i in batch], samples, sampling, uniform)
        rows = [prompts.rows[i] for i in batch]
        measured = {"proxy_reward": proxy(groups, rows), "length": groups.response_mask.sum(-1).float()}
        measured["finished"] = finished(groups, sampling.eos_ids).float()
        if reference is not None:
            measured["kl"] = _kl(policy, reference, groups.to(device), kl_temperature).cpu()
        if gold is not None:
            measured["gold_reward"] = gold(groups, rows)
        parts.append(measured)
        for i, group in zip(batch, groups.completion_lists(), strict=True):
            texts[i] = [decode_completion(tokenizer, ids, sampling.eos_ids) for ids in group]
        order += batch
        progress(len(order))
    where = torch.tensor(order).argsort()
    values = {name: torch.cat([part[name] for part in parts])[where] for name in parts[0]}
    return Assessment(
        texts,
        values["proxy_reward"],
        values.get("gold_reward"),
        values.get("kl"),
        values["length"],
        values["finished"],
    )


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each list."""
    return {name: sum(column) / len(column) for name, column in values.items()}


def _kl(
    policy: nn.Module, reference: Callable[[CompletionGroups], Tensor], groups: CompletionGroups, temperature: float
) -> Tensor:
    logprobs = completion_logprobs(policy, groups, temperature=temperature).logprobs
    return sequence_kl(logprobs, reference(groups), groups.response_mask, "k1")
