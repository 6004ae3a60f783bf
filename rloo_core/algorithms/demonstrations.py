"""Prompts and completions that are given, not sampled: the batches of SFT, of the reward model and of DPO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rloo_core.batching import step_indices, token_budget_batches
from rloo_core.layout import Layout, tokens_held
from rloo_core.processes import Processes
from rloo_core.types import CompletionGroups, Ids


@dataclass(frozen=True)
class GivenCompletions:
    """A table of prompts with K completions each, as token ids.

    Attributes:
        prompts: Ids of each prompt.
        completions: Ids of the K completions of each prompt, EOS included.
        pad_id: Fills up batches.
        max_tokens: Budget of a micro-batch, padding included.
        layout: How the model that reads them lays them out.
        config: Of that model; needed for the shared layout.
    """

    prompts: Sequence[Ids]
    completions: Sequence[Sequence[Ids]]
    pad_id: int
    max_tokens: int
    layout: Layout = Layout.PADDED
    config: Any = None

    def __len__(self) -> int:
        return len(self.prompts)

    def longest_row(self) -> int:
        """Tokens of the longest prompt + completion; 0 if there are none."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return max((len(prompt) + max(map(len, group)) for prompt, group in pairs), default=0)

    def step(self, step: int, batch_size: int, seed: int, processes: Processes) -> list[CompletionGroups]:
        """The micro-batches of a training step, of this process's share of its rows."""
        return self.micro_batches(processes.share(step_indices(step, batch_size, len(self), seed, "training order")))

    def first(self) -> CompletionGroups:
        """The first row alone: something to run through a model where there is nothing to learn from."""
        return self.micro_batches([0])[0]

    def all(self) -> list[CompletionGroups]:
        """The whole table in micro-batches."""
        return self.micro_batches(range(len(self)))

    def micro_batches(self, indices: Sequence[int]) -> list[CompletionGroups]:
        """Some rows, binned by length within the token budget; none for none."""
        prompts, completions = [self.prompts[i] for i in indices], [self.completions[i] for i in indices]
        lengths = [len(ids) for ids in prompts], [list(map(len, group)) for group in completions]
        held = tokens_held(*lengths, self.layout, self.config)
        return [
            CompletionGroups.from_ids([prompts[j] for j in batch], [completions[j] for j in batch], self.pad_id)
            for batch in token_budget_batches(len(prompts), held, self.max_tokens)
        ]
