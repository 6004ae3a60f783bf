"""The reward of a run, from what `reward.terms` names: the reward model, the gold reward, functions, with weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

from rloo_core.data.synthetic import gold_rewards
from rloo_core.extensions import load_extension
from rloo_core.observer import Observer
from rloo_core.reward_models import RewardModel, load_reward_model, trained_with_template
from rloo_core.rewards import CombinedReward, FunctionReward, ModelReward, ReencodedReward, Reward, Term, term_names
from rloo_core.rewards.builtin import BUILT_IN
from rloo_core.settings import ComputeSettings, RewardSettings, RewardTerm
from rloo_core.stages.common import MODEL, stage_layout
from rloo_core.tokenization import load_tokenizer, same_tokens

REWARD_MODEL, GOLD = "reward_model", "gold"


@dataclass(frozen=True)
class RewardSource:
    """What rewards are built from.

    Attributes:
        inputs: Directories of earlier stages.
        tokenizer: The policy's.
        eos_ids: Every id that ends a completion of the policy.
        compute: Layout and batch budget.
        prepare: Puts a model that only looks on its device, under the run's autocast.
        observer: Told where the reward model cannot share prompts.
    """

    inputs: Mapping[str, Path]
    tokenizer: PreTrainedTokenizerBase
    eos_ids: Sequence[int]
    compute: ComputeSettings
    prepare: Callable[[nn.Module], nn.Module]
    observer: Observer


def stage_reward(settings: RewardSettings, source: RewardSource) -> CombinedReward:
    """The weighted sum that the settings name.

    Raises:
        ValueError: If a name is unknown, a function cannot be called as a reward, or there is no reward model.
    """
    return CombinedReward(
        [
            Term(name, _reward(term, source), term.weight)
            for name, term in zip(_names(settings), terms(settings), strict=True)
        ]
    )


def terms(settings: RewardSettings) -> list[RewardTerm]:
    """The terms; a bare name has weight 1 and no arguments."""
    return [RewardTerm(function=term) if isinstance(term, str) else term for term in settings.terms]


def _names(settings: RewardSettings) -> list[str]:
    """A short name of each term, told apart by a number where it comes again."""
    return term_names([term.function.rpartition(":")[2] for term in terms(settings)])


def _reward(term: RewardTerm, source: RewardSource) -> Reward:
    if term.function == REWARD_MODEL:
        return model_reward(source)
    if term.function == GOLD:
        return FunctionReward(gold_rewards, source.tokenizer, source.eos_ids)
    function = BUILT_IN.get(term.function) or load_extension("rewards", term.function)
    return FunctionReward(function, source.tokenizer, source.eos_ids, dict(term.arguments))


def model_reward(source: RewardSource) -> Reward:
    """The reward model that its stage left; what is sampled is encoded again if its tokenizer is not the policy's."""
    model, tokenizer = stage_reward_model(source.inputs)
    prepared, budget = source.prepare(model), source.compute.max_tokens_per_batch
    model.layout = stage_layout(model.classifier, source.compute, source.observer)
    if same_tokens(tokenizer, source.tokenizer):
        return ModelReward(prepared, budget)
    template = trained_with_template(model)
    return ReencodedReward(prepared, tokenizer, template, source.tokenizer, source.eos_ids, budget)


def stage_reward_model(inputs: Mapping[str, Path]) -> tuple[RewardModel, PreTrainedTokenizerBase]:
    """The reward model and its tokenizer.

    Raises:
        ValueError: If the run has none.
    """
    directory = inputs["reward_model"] / MODEL
    if not directory.exists():
        raise ValueError(
            "this run has no reward model (reward_model.enabled=false); name other rewards in reward.terms"
        )
    tokenizer = load_tokenizer(str(directory))
    return load_reward_model(directory, tokenizer), tokenizer
