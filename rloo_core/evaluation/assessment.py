"""Completions of a policy on given prompts, each with everything that is measured of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rloo_core.batching import token_budget_batches
from rloo_core.heads import unwrapped
from rloo_core.kl import sequence_kl
from rloo_core.layout import Layout, tokens_held
from rloo_core.logprobs import completion_logprobs
from rloo_core.masking import masked_sum
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
    """K completions a prompt and their measures, all [P, K] on the CPU.

    `kl` is the sampled log-ratio to the reference (k1), `kl_k3` the estimate that is never negative, `ref_logprob` the
    completion's log-prob under the reference, all at the temperature of the KL; nats a completion.
    """

    ids: list[list[list[int]]]
    texts: list[list[str]]
    proxy_reward: Tensor
    gold_reward: Tensor | None
    kl: Tensor | None
    kl_k3: Tensor | None
    ref_logprob: Tensor | None
    length: Tensor
    finished: Tensor

    def first(self, count: int = 1) -> dict[str, list[float]]:
        """The measures of each prompt's first completions (`count` of them), prompt by prompt."""
        measures = {
            "proxy_reward": self.proxy_reward,
            "gold_reward": self.gold_reward,
            "kl": self.kl,
            "kl_k3": self.kl_k3,
            "length": self.length,
            "finished": self.finished,
        }
        return {name: values[:, :count].flatten().tolist() for name, values in measures.items() if values is not None}


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
        sampling: Temperature (0: greedy), length, special tokens, batch budget, and the layout, tried on the policy.
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
    ids_of: list[list[list[int]]] = [[] for _ in prompts.ids]
    longest = [[sampling.max_new_tokens] * samples for _ in prompts.ids]
    config = getattr(unwrapped(policy), "config", None)
    held = tokens_held([len(ids) for ids in prompts.ids], longest, sampling.layout, config)
    order: list[int] = []
    for batch in token_budget_batches(len(prompts.ids), held, sampling.max_tokens):
        keys = [(i, k) for i in batch for k in range(samples)]
        uniform = uniform_numbers(seed, "evaluation", keys, sampling.max_new_tokens)
        groups = sample_completions(policy, [prompts.ids[i] for i in batch], samples, sampling, uniform)
        rows = [prompts.rows[i] for i in batch]
        measured = {"proxy_reward": proxy(groups, rows), "length": groups.response_mask.sum(-1).float()}
        measured["finished"] = finished(groups, sampling.eos_ids, sampling.stop).float()
        if reference is not None:
            measured |= _kl(policy, reference, groups.to(device), kl_temperature, sampling.layout)
        if gold is not None:
            measured["gold_reward"] = gold(groups, rows)
        parts.append(measured)
        for i, group in zip(batch, groups.completion_lists(), strict=True):
            ids_of[i] = group
            texts[i] = [decode_completion(tokenizer, ids, sampling.eos_ids) for ids in group]
        order += batch
        progress(len(order))
    where = torch.tensor(order).argsort()
    values = {name: torch.cat([part[name] for part in parts])[where] for name in parts[0]}
    return Assessment(
        ids_of,
        texts,
        values["proxy_reward"],
        values.get("gold_reward"),
        values.get("kl"),
        values.get("kl_k3"),
        values.get("ref_logprob"),
        values["length"],
        values["finished"],
    )


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The mean of each list."""
    return {name: sum(column) / len(column) for name, column in values.items()}


def _kl(
    policy: nn.Module,
    reference: Callable[[CompletionGroups], Tensor],
    groups: CompletionGroups,
    temperature: float,
    layout: Layout,
) -> dict[str, Tensor]:
    logprobs = completion_logprobs(policy, groups, temperature=temperature, layout=layout, entropy=False).logprobs
    ref_logprobs = reference(groups)
    k1, k3 = (sequence_kl(logprobs, ref_logprobs, groups.response_mask, kind) for kind in ("k1", "k3"))
    ref_logprob = masked_sum(ref_logprobs, groups.response_mask, -1)
    return {"kl": k1.cpu(), "kl_k3": k3.cpu(), "ref_logprob": ref_logprob.cpu()}
