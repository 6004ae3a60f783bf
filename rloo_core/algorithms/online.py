"""Every method that samples: rloo, reinforce, vanilla_pg, ppo, raft and their kin are settings of this one.

R = r - kl_coef * log pi/pi_ref, then "how does it become a gradient": `action`, `advantage` and `surrogate` say how
(Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740, compare them).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rloo_core.advantages import RunningMean, whiten
from rloo_core.algorithms.choices import GROUP_ADVANTAGES, SequenceAdvantage, updates_per_step
from rloo_core.algorithms.collecting import Collector, Rollout
from rloo_core.algorithms.experience import (
    Estimates,
    Experience,
    Pass,
    corrected_for_the_sampler,
    shaped_rewards,
    token_advantages,
)
from rloo_core.algorithms.online_metrics import StepMetrics
from rloo_core.algorithms.skipping import best_alone_is_cheaper, taught, teaches
from rloo_core.algorithms.surrogates import Denominators, critic_loss, kl_loss, policy_loss
from rloo_core.batching import token_budget_batches
from rloo_core.critics import Critic
from rloo_core.heads import unwrapped
from rloo_core.kl import adapted_kl_coef
from rloo_core.layout import Layout, tokens_held
from rloo_core.logprobs import completion_logprobs
from rloo_core.optimization import recomputes_activations
from rloo_core.processes import Processes
from rloo_core.random_streams import shuffled
from rloo_core.settings import AlgorithmSettings
from rloo_core.trainer import Method, Update
from rloo_core.types import CompletionGroups

ReferenceLogprobs = Callable[[CompletionGroups], Tensor]
"""Log-probs [P, K, T] of completions under the reference policy, without gradient."""


@dataclass
class OnlineMethod(Method):
    """Sample, score, compare, update.

    Where a rollout batch makes one update and advantages need nothing beyond their own prompt, the update's own
    forward pass gives the log-probs of the shaped reward (strictly on-policy: no second pass, no ratio); RAFT may
    find the best completions first, see `skipping`. Otherwise a pass fixes log-probs, values and advantages before
    the first update; where it fits into one micro-batch, the first update goes on from that very pass.

    Attributes:
        settings: The algorithm.
        policy: The model in training, prepared for the processes.
        collector: Samples and scores.
        reference: Log-probs under the policy's frozen start; None where KL is free.
        critic: Values [P, K, T] of completions, prepared; None for methods without one.
        layout: Whether completions share their prompt's computation.
        processes: Those that train together.
        monitor: Held-out metrics after some steps.
        own_advantage: An advantage function of the user's, where `settings.advantage` names none of ours.
    """

    settings: AlgorithmSettings
    policy: nn.Module
    collector: Collector
    reference: ReferenceLogprobs | None
    critic: nn.Module | None
    layout: Layout
    processes: Processes
    monitor: Callable[[], Mapping[str, float]]
    own_advantage: SequenceAdvantage | None = None
    past: RunningMean = field(default_factory=lambda: RunningMean(0, 0.0), init=False)
    kl_coef: float = field(init=False)
    _metrics: StepMetrics = field(init=False)
    _pass: Pass | None = field(default=None, init=False)
    _summary: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.kl_coef = self.settings.kl_coef
        if self.collector.prompts_per_step < self.processes.count:
            raise ValueError(
                f"a step has {self.collector.prompts_per_step} prompts for {self.processes.count} processes; raise "
                f"algorithm.rollout_batch_size to at least {self.processes.count * self.settings.group_size}"
            )

    def updates(self, step: int) -> Iterator[Update]:
        rollout = self.collector.collect(step)
        self._metrics = StepMetrics(self.processes)
        self.tokens = self._total(rollout.groups.response_mask)
        best_first = best_alone_is_cheaper(self.settings, rollout.groups, self.layout)
        all_at_once = self._one_pass_suffices() and not best_first
        experience = None if all_at_once else self._prepare(rollout, may_go_on=not best_first)
        teaching = None if experience is None else teaches(self.settings, experience, self._loss_mask(rollout))
        for places in self._minibatches(step):
            wanted = set(places)
            rows = [row for row, place in enumerate(rollout.places) if place in wanted]
            over = self._denominators(rollout, rows, len(places))
            if teaching is not None and self._pass is None:
                # those without a gradient are left out, but one: an update without any would not be a step of zero
                rows = [row for row in rows if teaching[row].any()] or rows[:1]
            yield [
                lambda b=batch, over=over: self._micro_loss(rollout, experience, teaching, b, over)  # type: ignore[misc]
                for batch in self._batches(rollout, rows)
            ]
            self._pass = None
        self._finish()

    def idle(self) -> Tensor:
        first = CompletionGroups.from_ids([self.collector.prompts[0]], [[[0]]], 0).to(self._device)
        loss = completion_logprobs(self.policy, first, temperature=1.0).logprobs.sum()
        if self.critic is not None:
            loss = loss + self.critic(first).sum()
        return loss * 0.0

    def metrics(self) -> Mapping[str, float]:
        return self._summary

    def evaluate(self, step: int) -> Mapping[str, float]:
        return self.monitor()

    def state(self) -> dict[str, object]:
        return {"past": self.past.to_json(), "kl_coef": self.kl_coef}

    def restore(self, state: Mapping[str, object]) -> None:
        self.past = RunningMean.from_json(state["past"])  # type: ignore[arg-type]
        self.kl_coef = float(state["kl_coef"])  # type: ignore[arg-type]

    def _first_update_has_all(self) -> bool:
        """Whether the first update may go on from a pass over the whole batch: its own rows, with all it needs."""
        size = self.settings.step_batch_size or self.settings.rollout_batch_size
        models = [self.policy, *([] if self.critic is None else [self.critic])]
        alone = self.processes.count == 1  # wrappers for several expect forward and backward passes in turn
        return alone and size == self.settings.rollout_batch_size and not any(map(recomputes_activations, models))

    @property
    def _device(self) -> torch.device:
        return next(self.policy.parameters()).device

    def _one_pass_suffices(self) -> bool:
        """One update, and no advantage that depends on the rest of the batch."""
        one_update = updates_per_step(self.settings) == 1
        return one_update and not self.settings.whiten_advantages and self._advantages_are_local()

    def _minibatches(self, step: int) -> Iterator[Sequence[int]]:
        """Places of the prompts of each update: whole groups, in a new order every epoch, all prompts once an epoch."""
        own, prompts = self.settings, self.collector.prompts_per_step
        size = (own.step_batch_size or own.rollout_batch_size) // own.group_size
        for epoch in range(own.epochs_per_rollout):
            order = list(range(prompts)) if size >= prompts else shuffled(prompts, own.seed, "updates", step, epoch)
            yield from (order[start : start + size] for start in range(0, prompts, size))

    def _batches(self, rollout: Rollout, rows: Sequence[int]) -> list[list[int]]:
        """Rows that fit into the budget together, for the policy and for its critic."""
        prompts, completions = rollout.groups.lengths()
        lengths = [prompts[row] for row in rows], [completions[row] for row in rows]
        readers = [(self.layout, getattr(unwrapped(self.policy), "config", None))]
        critic = unwrapped(self.critic)
        if isinstance(critic, Critic):
            readers.append((critic.layout, critic.classifier.config))
        held = [tokens_held(*lengths, layout, config) for layout, config in readers]
        most = self.collector.sampling.max_tokens
        batches = token_budget_batches(len(rows), lambda batch: max(each(batch) for each in held), most)
        return [[rows[i] for i in batch] for batch in batches]

    def _loss_mask(self, rollout: Rollout) -> Tensor:
        """Tokens that count in the loss. Shape [P, K, T]."""
        counts = rollout.scorable & rollout.finished if self.settings.mask_truncated else rollout.scorable
        return rollout.groups.response_mask & (counts & ~rollout.dropped[:, None])[..., None]

    def _denominators(self, rollout: Rollout, rows: list[int], prompts: int) -> Denominators:
        """What is masked stays in the count of completions, what is dropped does not; tokens are those that count."""
        tokens = self._total(self._loss_mask(rollout)[rows])
        kept = prompts - self._total(rollout.dropped[rows])
        return Denominators(kept, kept * self.settings.group_size, tokens)

    def _total(self, mask: Tensor) -> int:
        return int(self.processes.sum(mask.sum()))

    def _micro_loss(
        self,
        whole: Rollout,
        experience: Experience | None,
        teaching: Tensor | None,
        rows: list[int],
        over: Denominators,
    ) -> Tensor:
        """Loss of some prompts; without prepared experience it is made from this very pass."""
        rollout = whole.select(rows).to(self._device)
        mask, longest = self._loss_mask(rollout), self.collector.sampling.max_new_tokens
        if experience is None or teaching is None:
            found = self._forward(rollout.groups)
            part = self._experience(rollout, self._estimates(rollout, found))
            self._metrics.add_completions(rollout, part)
        else:
            part = experience.select(rows, mask.shape[-1]).to(self._device)
            if self._pass is None:
                found, mask = taught(self._forward, rollout.groups, teaching[rows].to(self._device), mask)
            else:
                found, self._pass = self._pass, None
        logprobs, _, values = found
        if self.settings.sampler_cap is not None and rollout.sampled is not None:
            part = corrected_for_the_sampler(part, rollout, self.settings.sampler_cap)
        loss, ratios = policy_loss(self.settings, logprobs, part, mask, over, longest)
        losses = {"loss/policy": loss}
        ref_logprobs = part.estimates.ref_logprobs
        losses["loss/kl"] = kl_loss(self.settings, self.kl_coef, logprobs, ref_logprobs, mask, over, longest)
        if values is not None:
            losses["loss/critic"] = critic_loss(self.settings, values, part, mask, over)
        self._metrics.add_update({name: value.detach() for name, value in losses.items()}, ratios)
        return sum(losses.values(), torch.zeros((), device=self._device))

    def _forward(self, groups: CompletionGroups) -> Pass:
        logprobs, entropy = completion_logprobs(
            self.policy, groups, temperature=self.collector.sampling.temperature, layout=self.layout
        )
        return Pass(logprobs, entropy, None if self.critic is None else self.critic(groups))

    def _estimates(self, rollout: Rollout, found: Pass) -> Estimates:
        ref_logprobs = None if self.reference is None else self.reference(rollout.groups)
        values = None if found.values is None else found.values.detach()
        return Estimates(found.logprobs.detach(), found.entropy, ref_logprobs, values)

    def _experience(self, rollout: Rollout, estimates: Estimates) -> Experience:
        """Advantages of prompts that need to know nothing of the rest of the batch."""
        shaped = shaped_rewards(rollout, estimates, self.settings, self.kl_coef)
        if self.settings.action == "token":
            advantages, returns = token_advantages(rollout, estimates, self.settings, self.kl_coef)
            return Experience(estimates, shaped, advantages, returns)
        return Experience(estimates, shaped, self._advantage()(shaped, rollout.scorable), None)

    def _advantage(self) -> SequenceAdvantage:
        if self.own_advantage is not None:
            return self.own_advantage
        if self.settings.advantage == "running_mean":
            return self.past.advantages
        return GROUP_ADVANTAGES[str(self.settings.advantage)]

    @torch.no_grad()
    def _prepare(self, whole: Rollout, may_go_on: bool) -> Experience:
        """Experience of this process's completions, on the CPU, before any of them has moved the policy."""
        estimates = self._estimated(whole, may_go_on)
        experience = self._experience(whole, estimates) if self._advantages_are_local() else None
        if experience is None:
            experience = self._compared_with_the_batch(whole, estimates)
        if self.settings.whiten_advantages:
            experience = self._whitened(whole, experience)
        self._metrics.add_completions(whole, experience)
        return experience

    def _advantages_are_local(self) -> bool:
        return not (self.settings.advantage == "running_mean" and self.past.count == 0)

    def _estimated(self, whole: Rollout, may_go_on: bool) -> Estimates:
        """Estimates of every completion, micro-batch by micro-batch, padded to one width.

        Where it may and one pass has all of them, that pass keeps its gradient for the first update.
        """
        shape = whole.groups.completion_ids.shape
        found: dict[str, Tensor] = {}
        batches = self._batches(whole, range(len(whole.places)))
        goes_on = may_go_on and len(batches) == 1 and self._first_update_has_all()
        for rows in batches:
            rollout = whole.select(rows).to(self._device)
            with torch.set_grad_enabled(goes_on):
                found_here = self._forward(rollout.groups)
            self._pass = found_here if goes_on else None
            part = self._estimates(rollout, found_here)
            for name, value in vars(part).items():
                if value is not None:
                    target = found.setdefault(name, torch.zeros(shape, dtype=value.dtype))
                    target[rows, :, : value.shape[-1]] = value.cpu()
        return Estimates(found["logprobs"], found["entropy"], found.get("ref_logprobs"), found.get("values"))

    def _compared_with_the_batch(self, whole: Rollout, estimates: Estimates) -> Experience:
        """Advantages that compare a completion with the whole batch, over all processes."""
        shaped = shaped_rewards(whole, estimates, self.settings, self.kl_coef)
        everyone = self._everyone(whole, shaped)
        scorable = self._everyone(whole, whole.scorable.to(shaped.dtype)).bool()
        advantages = self._advantage()(everyone, scorable)[whole.places]
        return Experience(estimates, shaped, advantages, None)

    def _whitened(self, whole: Rollout, experience: Experience) -> Experience:
        """Advantages with mean 0 and std 1 over the whole batch."""
        tokens = experience.advantages.ndim == 3
        valid = whole.groups.response_mask & whole.scorable[..., None] if tokens else whole.scorable
        width = self.collector.sampling.max_new_tokens
        values, mask = experience.advantages, valid
        if tokens:  # one width in all processes
            missing = width - values.shape[-1]
            values, mask = nn.functional.pad(values, (0, missing)), nn.functional.pad(mask, (0, missing))
        everyone = whiten(self._everyone(whole, values), self._everyone(whole, mask.to(values.dtype)).bool())
        own = everyone[whole.places]
        own = own[..., : experience.advantages.shape[-1]] if tokens else own
        return Experience(experience.estimates, experience.shaped, own, experience.returns)

    def _everyone(self, whole: Rollout, values: Tensor) -> Tensor:
        """All processes' rows, in the order of the step. Shape [P, ...]."""
        rows = self.processes.gather(list(zip(whole.places, values.cpu(), strict=True)))
        return torch.stack([row for _, row in sorted(rows, key=lambda item: item[0])])

    def _finish(self) -> None:
        """After the updates of a step: its metrics, and what the next step remembers."""
        found = self._metrics.gather()
        self._summary = self._metrics.summary(self.settings.kl, updates_per_step(self.settings))
        shaped = found["shaped_reward"]
        if self.settings.advantage == "running_mean":
            self.past = self.past.updated(shaped[~shaped.isnan()])
            self._summary["baseline/mean"] = self.past.mean
        if self.settings.kl.target is not None:
            self._summary["kl/coef"] = self.kl_coef
            kl = self._summary["kl/mean"]
            self.kl_coef = adapted_kl_coef(
                self.kl_coef, kl, self.settings.kl.target, self.settings.kl.horizon, shaped.numel()
            )
