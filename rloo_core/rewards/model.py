"""Rewards of a trained reward model, whichever tokenizer it was trained with."""

from collections.abc import Sequence

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rloo_core.reward_models import score_completions
from rloo_core.rewards.base import Row
from rloo_core.tokenization import decode_completion, encode_completion, encode_prompt
from rloo_core.types import CompletionGroups


class ModelReward:
    """A reward model with the policy's tokenizer: it reads the very ids that were sampled, nothing is encoded again.

    Args:
        model: A `RewardModel`, or the same wrapped for several processes or for autocast.
        max_tokens: Budget of a batch, padding included.
    """

    def __init__(self, model: nn.Module, max_tokens: int) -> None:
        self.model = model
        self.max_tokens = max_tokens

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        return _finite(score_completions(self.model, groups, self.max_tokens))


class ReencodedReward:
    """A reward model with a tokenizer of its own: it reads the text, encoded exactly as it was in its training.

    That is the prompt as it stands in the table, through the model's own chat template where it was trained with one,
    the completion's tokens, and EOS behind a completion that ended; one that was cut off gets none.

    Args:
        model: As for `ModelReward`.
        tokenizer: The reward model's.
        chat_template: Whether it was trained on text prompts as a user's turn of its chat template.
        policy_tokenizer: Turns sampled ids into text.
        eos_ids: Every id of the policy that ends a completion.
        max_tokens: Budget of a batch, padding included.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: bool,
        policy_tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int],
        max_tokens: int,
    ) -> None:
        self.model, self.tokenizer, self.chat_template = model, tokenizer, chat_template
        self.policy_tokenizer, self.eos_ids, self.max_tokens = policy_tokenizer, tuple(eos_ids), max_tokens

    def __call__(self, groups: CompletionGroups, rows: Sequence[Row]) -> Tensor:
        return _finite(score_completions(self.model, self.encoded(groups, rows), self.max_tokens))

    def encoded(self, groups: CompletionGroups, rows: Sequence[Row]) -> CompletionGroups:
        """The same prompts and completions in the reward model's ids."""
        prompts = [encode_prompt(self.tokenizer, row["prompt"], self.chat_template) for row in rows]
        completions = [[self._encoded(ids) for ids in group] for group in groups.completion_lists()]
        return CompletionGroups.from_ids(prompts, completions, pad_id=0)  # masks tell padding from text

    def _encoded(self, ids: Sequence[int]) -> list[int]:
        text = decode_completion(self.policy_tokenizer, ids, self.eos_ids)
        encoded = encode_completion(self.tokenizer, text)
        cut_off = encoded[:-1] if ids[-1] not in self.eos_ids else encoded
        return cut_off or encoded  # a reward needs a token to stand at


def _finite(rewards: Tensor) -> Tensor:
    """A reward model can score everything; NaN would be taken for a completion that cannot be scored."""
    if not rewards.isfinite().all():
        wrong = int((~rewards.isfinite()).sum())
        raise ValueError(
            f"the reward model gave {wrong} of {rewards.numel()} completions no finite reward; it has diverged or is "
            f"damaged (reward_model.path; or train it with a lower reward_model.learning_rate)"
        )
    return rewards
