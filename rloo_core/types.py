"""The batch everything is computed on: prompts, and the completions that share them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Ids = Sequence[int]


@dataclass(frozen=True)
class CompletionGroups:
    """P prompts with K completions each: a rollout's groups, preference pairs (K = 2), demonstrations (K = 1).

    Attributes:
        prompt_ids: Token ids, left-padded. Shape [P, S].
        prompt_mask: True at real prompt tokens. Shape [P, S].
        completion_ids: Token ids, right-padded. Shape [P, K, T].
        response_mask: True where the completion has a token, EOS included; never at padding. Shape [P, K, T].
    """

    prompt_ids: Tensor
    prompt_mask: Tensor
    completion_ids: Tensor
    response_mask: Tensor

    @classmethod
    def from_ids(cls, prompts: Sequence[Ids], completions: Sequence[Sequence[Ids]], pad_id: int) -> "CompletionGroups":
        """Pad lists of token ids.

        Args:
            prompts: Token ids of each prompt, none empty.
            completions: For each prompt its K completions, none empty.
            pad_id: What to pad with. It is never looked at: the masks tell padding from text.

        Raises:
            ValueError: If a prompt or completion is empty or prompts differ in K.
        """
        group_sizes = {len(group) for group in completions}
        if len(prompts) != len(completions) or len(group_sizes) != 1:
            raise ValueError(
                f"every prompt needs the same number of completions; got {len(prompts)} prompts with {group_sizes}"
            )
        flat = [ids for group in completions for ids in group]
        if not all(map(len, prompts)) or not all(map(len, flat)):
            raise ValueError("prompts and completions need at least one token each; got an empty one")
        prompt_ids, prompt_mask = _pad(prompts, pad_id, left=True)
        completion_ids, response_mask = _pad(flat, pad_id, left=False)
        shape = (len(prompts), group_sizes.pop(), -1)
        return cls(prompt_ids, prompt_mask, completion_ids.view(shape), response_mask.view(shape))

    @property
    def group_size(self) -> int:
        """K."""
        return self.completion_ids.shape[1]

    def lengths(self) -> tuple[list[int], list[list[int]]]:
        """Tokens of each prompt, and of its K completions."""
        return self.prompt_mask.sum(-1).tolist(), self.response_mask.sum(-1).tolist()

    def select(self, indices: Sequence[int]) -> "CompletionGroups":
        """The groups of some prompts, without the columns that are padding in all of them."""
        prompt_mask, response_mask = self.prompt_mask[indices], self.response_mask[indices]
        start = int(prompt_mask.any(0).int().argmax())
        end = int(response_mask.sum(-1).max())
        return CompletionGroups(
            self.prompt_ids[indices][:, start:],
            prompt_mask[:, start:],
            self.completion_ids[indices][..., :end],
            response_mask[..., :end],
        )

    def to(self, device: torch.device) -> "CompletionGroups":
        return CompletionGroups(
            self.prompt_ids.to(device),
            self.prompt_mask.to(device),
            self.completion_ids.to(device),
            self.response_mask.to(device),
        )

    def prompt_lists(self) -> list[list[int]]:
        """Token ids of each prompt without padding."""
        return [ids[mask].tolist() for ids, mask in zip(self.prompt_ids, self.prompt_mask, strict=True)]

    def completion_lists(self) -> list[list[list[int]]]:
        """Token ids without padding, by prompt and completion."""
        return [
            [ids[mask].tolist() for ids, mask in zip(group, masks, strict=True)]
            for group, masks in zip(self.completion_ids, self.response_mask, strict=True)
        ]


def _pad(rows: Sequence[Ids], pad_id: int, left: bool) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        columns = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, columns] = torch.tensor(row, dtype=torch.long)
        mask[i, columns] = True
    return ids, mask
