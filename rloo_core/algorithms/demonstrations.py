"""Pairs of prompt and completions that are given, not sampled: the batches of SFT and of the reward model."""

from collections.abc import Sequence
from dataclasses import dataclass

from rloo_core.batching import step_indices, token_budget_batches
from rloo_core.types import CompletionGroups, Ids


@dataclass(frozen=True)
class GivenCompletions:
    """A table of prompts with K completions each, as token ids.

    Attributes:
        prompts: Ids of each prompt.
        completions: Ids of the K completions of each prompt, EOS included.
        pad_id: Fills up batches.
        max_tokens: Budget of a micro-batch, rows x row length.
    """

    prompts: Sequence[Ids]
    completions: Sequence[Sequence[Ids]]
    pad_id: int
    max_tokens: int

    def __len__(self) -> int:
        return len(self.prompts)

    def longest_row(self) -> int:
        """Tokens of the longest prompt + completion; 0 if there are none."""
        pairs = zip(self.prompts, self.completions, strict=True)
        return max((len(prompt) + max(map(len, group)) for prompt, group in pairs), default=0)

    def step(self, step: int, batch_size: int, seed: int) -> list[CompletionGroups]:
        """The micro-batches of a training step."""
        return self._micro_batches(step_indices(step, batch_size, len(self), seed, "training order"))

    def all(self) -> list[CompletionGroups]:
        """The whole table in micro-batches."""
        return self._micro_batches(range(len(self)))

    def _micro_batches(self, indices: Sequence[int]) -> list[CompletionGroups]:
        lengths = [len(self.prompts[i]) + max(map(len, self.completions[i])) for i in indices]
        rows_each = len(self.completions[0])
        return [
            CompletionGroups.from_ids(
                [self.prompts[indices[j]] for j in batch], [self.completions[indices[j]] for j in batch], self.pad_id
            )
            for batch in token_budget_batches(lengths, self.max_tokens, rows_each)
        ]
