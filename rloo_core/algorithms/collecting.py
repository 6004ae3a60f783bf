"""One step's completions: sampled, scored, and charged for what they lack."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rloo_core.batching import step_indices
from rloo_core.processes import Processes
from rloo_core.random_streams import generator_for
from rloo_core.rewards import Reward, Row
from rloo_core.rollout import Sampling, finished, sample_completions, uniform_numbers
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
        finished: True where a completion ends with EOS. Shape [P, K].
    """

    places: list[int]
    groups: CompletionGroups
    rewards: Tensor
    scores: Tensor
    finished: Tensor

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
        )

    def to(self, device: torch.device) -> "Rollout":
        return replace(
            self,
            groups=self.groups.to(device),
            rewards=self.rewards.to(device),
            scores=self.scores.to(device),
            finished=self.finished.to(device),
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
        """The completions of this process's share of a step's prompts."""
        own = self.settings
        indices = step_indices(step, self.prompts_per_step, len(self.prompts), own.seed, "prompts")
        places = self.processes.share(range(self.prompts_per_step))
        chosen = [indices[place] for place in places]
        keys = [(step, place, k) for place in places for k in range(own.group_size)]
        uniform = uniform_numbers(own.seed, "sampling", keys, self.sampling.max_new_tokens)
        prompts = [self.prompts[i] for i in chosen]
        groups = sample_completions(self.policy, prompts, own.group_size, self.sampling, uniform)
        rewards = self.reward(groups, [self.rows[i] for i in chosen])
        ended = finished(groups, self.sampling.eos_ids)
        noisy = rewards + self._noise(keys).view(rewards.shape).to(rewards.dtype)
        clipped = clip_rewards(noisy, own.reward_clip)
        scores = charge_missing_eos(clipped, ended, own.missing_eos_penalty, own.missing_eos)
        return Rollout(places, groups, rewards, scores.masked_fill(rewards.isnan(), 0.0), ended)

    def _noise(self, keys: Sequence[tuple[int, ...]]) -> Tensor:
        """Normal noise of each completion by itself: what siblings share would cancel in their advantages."""
        if self.settings.reward_noise == 0:
            return torch.zeros(len(keys))
        seed = self.settings.seed
        draws = [torch.randn((), generator=generator_for(seed, "reward noise", *key)) for key in keys]
        return self.settings.reward_noise * torch.stack(draws)
