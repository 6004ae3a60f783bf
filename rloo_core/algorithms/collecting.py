"""One step's completions: sampled, scored, and charged for what they lack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from rloo_core.advantages import equal_reward_groups, soft_overlong_penalty
from rloo_core.batching import step_indices
from rloo_core.processes import Processes
from rloo_core.random_streams import generator_for
from rloo_core.rewards import Reward, Row
from rloo_core.rollout import Sampling, finished, sample_with_logprobs, uniform_numbers
from rloo_core.scores import charge_missing_eos, clip_rewards
from rloo_core.settings import AlgorithmSettings
from rloo_core.types import CompletionGroups, Ids


@dataclass(frozen=True)
class Rollout:
    """The completions of some prompts of a step; those of this process, or a part of them.

    Attributes:
        places: Where each prompt stands in the step, over all processes.
        groups: Prompts and completions.
        rewards: Raw reward, without noise; NaN where a completion cannot be scored. Shape [P, K].
        scores: What training sees before KL: with noise, clipped, charged for a missing EOS; 0 where not scorable.
            Shape [P, K].
        finished: True where a completion ends with EOS or a stop string. Shape [P, K].
        dropped: True for prompts that are left out of the losses and of what they are divided by: their raw rewards are
            equal, and were so again when other prompts were tried. Shape [P].
        terms: Raw rewards of each term of the reward, where it has several. Each [P, K].
        sampled: Log-prob of each completion under the rounded weights it was sampled from; None where they are not
            rounded: then training's own differs in the last bits only. Shape [P, K].
    """

    places: list[int]
    groups: CompletionGroups
    rewards: Tensor
    scores: Tensor
    finished: Tensor
    dropped: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    sampled: Tensor | None = None

    @property
    def scorable(self) -> Tensor:
        """True where the reward is known. Shape [P, K]."""
        return ~self.rewards.isnan()

    def select(self, rows: Sequence[int]) -> "Rollout":
        """Some of its prompts."""
        return replace(
            self,
            places=[self.places[row] for row in rows],
            groups=self.groups.select(rows),
            rewards=self.rewards[rows],
            scores=self.scores[rows],
            finished=self.finished[rows],
            dropped=self.dropped[rows],
            terms={name: values[rows] for name, values in self.terms.items()},
            sampled=None if self.sampled is None else self.sampled[rows],
        )

    def to(self, device: torch.device) -> "Rollout":
        return replace(
            self,
            groups=self.groups.to(device),
            rewards=self.rewards.to(device),
            scores=self.scores.to(device),
            finished=self.finished.to(device),
            dropped=self.dropped.to(device),
            sampled=None if self.sampled is None else self.sampled.to(device),
        )


@dataclass(frozen=True)
class Collector:
    """Samples the completions of a step and scores them.

    Everything random is keyed by (seed, purpose, step, place, sample), so a resumed run, or one with another number of
    processes, draws the same.

    Attributes:
        policy: The model that writes, without any wrapper.
        reward: What a completion is worth; NaN: unknown.
        prompts: Token ids of the training prompts.
        rows: Their rows of the prompts table.
        sampling: Temperature, length, special tokens, batch budget.
        settings: Batch and group size, clip, noise, missing EOS.
        processes: Who samples which prompts.
    """

    policy: nn.Module
    reward: Reward
    prompts: Sequence[Ids]
    rows: Sequence[Row]
    sampling: Sampling
    settings: AlgorithmSettings
    processes: Processes

    @property
    def prompts_per_step(self) -> int:
        """P, over all processes."""
        return self.settings.rollout_batch_size // self.settings.group_size

    def collect(self, step: int) -> Rollout:
        """The completions of this process's share of a step's prompts.

        With `resample_equal_rewards`, a prompt whose completions have equal raw rewards gives its place to another one,
        so many times at most; what is equal even then is marked as dropped.
        """
        places = self.processes.share(range(self.prompts_per_step))
        rollout = self._sampled(step, 0, places)
        rounds = self.settings.resample_equal_rewards
        for round_ in range(1, rounds + 1):
            rows = _equal(rollout)
            if not rows:
                break
            rollout = _replaced(rollout, rows, self._sampled(step, round_, [rollout.places[row] for row in rows]))
        if rounds == 0:
            return rollout
        return replace(rollout, dropped=equal_reward_groups(rollout.rewards, rollout.scorable))

    def _sampled(self, step: int, round_: int, places: Sequence[int]) -> Rollout:
        own = self.settings
        at = step if round_ == 0 else step * own.resample_equal_rewards + round_ - 1
        purpose = "prompts" if round_ == 0 else "prompts to resample"
        indices = step_indices(at, self.prompts_per_step, len(self.prompts), own.seed, purpose)
        chosen = [indices[place] for place in places]
        keys = [(step, place, k, *([round_] if round_ else [])) for place in places for k in range(own.group_size)]
        uniform = uniform_numbers(own.seed, "sampling", keys, self.sampling.max_new_tokens)
        prompts = [self.prompts[i] for i in chosen]
        groups, logprobs = sample_with_logprobs(self.policy, prompts, own.group_size, self.sampling, uniform)
        rewards = self.reward(groups, [self.rows[i] for i in chosen])
        terms = getattr(self.reward, "last", {})
        rollout = self._scored(list(places), groups, rewards, terms if len(terms) > 1 else {}, keys)
        return rollout if self.sampling.dtype is None else replace(rollout, sampled=logprobs.sum(-1))

    def _scored(
        self,
        places: list[int],
        groups: CompletionGroups,
        rewards: Tensor,
        terms: Mapping[str, Tensor],
        keys: Sequence[tuple[int, ...]],
    ) -> Rollout:
        own, ended = self.settings, finished(groups, self.sampling.eos_ids, self.sampling.stop)
        scores = clip_rewards(rewards + self._noise(keys).view(rewards.shape).to(rewards.dtype), own.reward_clip)
        scores = charge_missing_eos(scores, ended, own.missing_eos_penalty, own.missing_eos)
        if own.overlong_buffer is not None:
            lengths = groups.response_mask.sum(-1)
            scores = scores + soft_overlong_penalty(lengths, self.sampling.max_new_tokens, own.overlong_buffer)
        scores = scores.masked_fill(rewards.isnan(), 0.0)
        return Rollout(places, groups, rewards, scores, ended, torch.zeros(len(places), dtype=torch.bool), dict(terms))

    def _noise(self, keys: Sequence[tuple[int, ...]]) -> Tensor:
        """Normal noise of each completion by itself: what siblings share would cancel in their advantages."""
        if self.settings.reward_noise == 0:
            return torch.zeros(len(keys))
        seed = self.settings.seed
        draws = [torch.randn((), generator=generator_for(seed, "reward noise", *key)) for key in keys]
        return self.settings.reward_noise * torch.stack(draws)


def _equal(rollout: Rollout) -> list[int]:
    """Rows whose raw rewards are equal: whatever shaping adds, there is nothing to compare."""
    found: list[int] = equal_reward_groups(rollout.rewards, rollout.scorable).nonzero().squeeze(-1).tolist()
    return found


def _replaced(rollout: Rollout, rows: Sequence[int], new: Rollout) -> Rollout:
    """The rollout with some of its prompts exchanged."""
    lists, fresh = rollout.groups.completion_lists(), new.groups.completion_lists()
    prompts, fresh_prompts = rollout.groups.prompt_lists(), new.groups.prompt_lists()
    for row, completions, prompt in zip(rows, fresh, fresh_prompts, strict=True):
        lists[row], prompts[row] = completions, prompt

    def exchanged(old: Tensor, values: Tensor) -> Tensor:
        changed = old.clone()
        changed[list(rows)] = values
        return changed

    return replace(
        rollout,
        groups=CompletionGroups.from_ids(prompts, lists, 0),
        rewards=exchanged(rollout.rewards, new.rewards),
        scores=exchanged(rollout.scores, new.scores),
        finished=exchanged(rollout.finished, new.finished),
        terms={name: exchanged(values, new.terms[name]) for name, values in rollout.terms.items()},
        sampled=None if rollout.sampled is None or new.sampled is None else exchanged(rollout.sampled, new.sampled),
    )
