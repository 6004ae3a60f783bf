"""Metrics of one step of an online method, the same however the step was split over micro-batches and processes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rloo_core.algorithms.collecting import Rollout
from rloo_core.algorithms.experience import Experience
from rloo_core.algorithms.surrogates import RatioStatistics
from rloo_core.kl import KlEstimator, sequence_kl
from rloo_core.losses.value import explained_variance
from rloo_core.masking import masked_sum
from rloo_core.processes import Processes
from rloo_core.settings import KlSettings

Row = dict[str, Tensor]
MAY_BE_UNKNOWN = (
    "reward/mean",
    "reward/std",
    "shaped_reward/mean",
    "critic/explained_variance",
)  # of nothing, or of equals
PER_TOKEN = ("advantage", "value", "return")  # ragged: one value a valid token, or one a completion
KL_ESTIMATORS: tuple[KlEstimator, ...] = ("k1", "k2", "k3")
LOSSES = ("loss/policy", "loss/kl", "loss/critic")


@dataclass
class StepMetrics:
    """Collects what micro-batches know, and turns it into numbers once a step.

    Attributes:
        processes: Gathers what the others know.
    """

    processes: Processes
    rows: list[tuple[int, Row]] = field(default_factory=list)
    ratios: list[RatioStatistics] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0.0))
    gathered: dict[str, Tensor] = field(default_factory=dict)

    def add_completions(self, rollout: Rollout, experience: Experience) -> None:
        """What is known of completions before the first update."""
        mask, estimates = rollout.groups.response_mask, experience.estimates
        columns = {
            "reward": rollout.rewards,
            "shaped_reward": experience.shaped.masked_fill(~rollout.scorable, torch.nan),
            "finished": rollout.finished.float(),
            "length": mask.sum(-1).float(),
            "entropy": masked_sum(estimates.entropy, mask, dim=-1),
        }
        if estimates.ref_logprobs is not None:
            for name in KL_ESTIMATORS:
                columns[name] = sequence_kl(estimates.logprobs, estimates.ref_logprobs, mask, name)
        if rollout.sampled is not None:
            columns["sampler"] = (masked_sum(estimates.logprobs, mask, dim=-1) - rollout.sampled).abs()
        columns |= {f"reward/{name}": values for name, values in rollout.terms.items()}
        columns["dropped"] = rollout.dropped.float()
        valid = mask & rollout.scorable[..., None]
        for row, place in enumerate(rollout.places):
            values = {name: column[row] for name, column in columns.items()}
            tokens = experience.advantages.ndim == mask.ndim
            values["advantage"] = experience.advantages[row][valid[row] if tokens else rollout.scorable[row]]
            if estimates.values is not None and experience.returns is not None:
                values |= {"value": estimates.values[row][valid[row]], "return": experience.returns[row][valid[row]]}
            self.rows.append((place, {name: value.detach().cpu() for name, value in values.items()}))

    def add_update(self, losses: Mapping[str, Tensor], ratios: RatioStatistics | None) -> None:
        """What a micro-batch of an update found."""
        for name, value in losses.items():
            self.losses[name] += value.item()
        if ratios is not None:
            self.ratios.append(ratios)

    def gather(self) -> dict[str, Tensor]:
        """Everything of all processes in the order of the step: [P, K] a completion, flat where it is ragged."""
        rows = [row for _, row in sorted(self.processes.gather(self.rows), key=lambda item: item[0])]
        self.gathered = {
            name: torch.cat([row[name].double() for row in rows])
            if name in PER_TOKEN
            else torch.stack([row[name].double() for row in rows])
            for name in rows[0]
        }
        return self.gathered

    def summary(self, kl: KlSettings, updates: int) -> dict[str, float]:
        """The step's metrics. Rewards are raw: before noise, clip, penalties and KL; unscorable ones are left out."""
        v = self.gathered or self.gather()
        known = ~v["reward"].isnan()
        result = {
            "reward/mean": v["reward"][known].mean(),
            "reward/std": _std(v["reward"][known]),
            "reward/unscorable_frac": 1 - known.double().mean(),
            "shaped_reward/mean": v["shaped_reward"][known].mean(),
            "advantage/std": _std(v["advantage"]),
            "reward/dropped_frac": v["dropped"].mean(),
            "completion/length_mean": v["length"].mean(),
            "completion/finished_frac": v["finished"].mean(),
            "completion/truncated_frac": 1 - v["finished"].mean(),
            "policy/entropy": v["entropy"].sum() / v["length"].sum(),
        }
        result |= _groups(v["reward"])
        result |= {
            f"{name}_mean": v[name].nanmean() for name in v if name.startswith("reward/") and _any_known(v[name])
        }
        if "k1" in v:
            result["kl/mean"] = v[kl.monitor].mean()
            result |= {f"kl/{name}_mean": v[name].mean() for name in KL_ESTIMATORS}
        if "sampler" in v:
            result["sampler/log_ratio_abs_mean"] = v["sampler"].mean()
        if "value" in v:
            everything = torch.ones_like(v["value"], dtype=torch.bool)
            result["critic/explained_variance"] = explained_variance(v["value"], v["return"], everything)
            result["critic/value_mean"] = v["value"].mean()
        numbers = {name: value.item() for name, value in result.items()}
        numbers = {name: value for name, value in numbers.items() if not (math.isnan(value) and name in MAY_BE_UNKNOWN)}
        acting = {"loss/policy": True, "loss/kl": kl.place == "loss" and "k1" in v, "loss/critic": "value" in v}
        losses = self._losses(updates)
        return numbers | self._ratios() | {name: losses[name] for name in LOSSES if acting[name]}

    def _ratios(self) -> dict[str, float]:
        found = self.processes.gather([(part.ratios.cpu(), part.clipped.cpu()) for part in self.ratios])
        if not found:
            return {}
        ratios = torch.cat([ratio for ratio, _ in found]).double()
        clipped = torch.cat([clip for _, clip in found]).double()
        if ratios.numel() == 0:  # nothing counts in the loss: all dropped, cut off or unscorable
            return {}
        return {
            "ratio/mean": ratios.mean().item(),
            "ratio/std": _std(ratios).item(),
            "ratio/max": ratios.max().item(),
            "ratio/min": ratios.min().item(),
            "policy/clip_frac": clipped.mean().item(),
        }

    def _losses(self, updates: int) -> dict[str, float]:
        """Means over the step's updates."""
        sums = self.processes.sum(torch.tensor(list(self.losses.values()), dtype=torch.float64)) / updates
        return dict(zip(self.losses, sums.tolist(), strict=True))


def _groups(rewards: Tensor) -> dict[str, Tensor]:
    """How much siblings differ; nothing where a prompt has one completion only."""
    if rewards.shape[1] < 2:
        return {}
    complete = rewards[~rewards.isnan().any(1)]
    if len(complete) == 0:
        return {}
    return {
        "reward/group_std": complete.std(dim=1).mean(),
        "reward/zero_std_frac": (complete.amax(1) == complete.amin(1)).double().mean(),
    }


def _any_known(values: Tensor) -> bool:
    return not bool(values.isnan().all())


def _std(values: Tensor) -> Tensor:
    """Sample standard deviation; 0 of a single value."""
    return values.std() if values.numel() > 1 else torch.zeros(())
