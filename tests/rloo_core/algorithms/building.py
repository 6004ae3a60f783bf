"""An online method on models of a few tokens, built from settings that say nothing unless they are changed."""

import torch

from rloo_core.algorithms.collecting import Collector, Rollout
from rloo_core.algorithms.online import OnlineMethod
from rloo_core.layout import Layout
from rloo_core.processes import Processes
from rloo_core.rollout import Sampling
from rloo_core.settings import AlgorithmSettings, CriticSettings, DpoSettings, KlSettings
from rloo_core.types import CompletionGroups

KL = {"place": "reward", "estimator": "k1", "monitor": "k1", "target": None, "horizon": 10000}
CRITIC = {"start": "reward_model", "learning_rate": 0.01, "value_clip": None}
DPO = {"beta": 0.1, "label_smoothing": 0.0}
PLAIN = {
    "name": "test", "action": "sequence", "advantage": "leave_one_out", "surrogate": "reinforce",
    "seed": 0, "learning_rate": 0.01, "schedule": "constant", "warmup_fraction": 0.0, "weight_decay": 0.0,
    "adam_beta2": 0.999, "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "eval_every": 1, "checkpoint_every": 0,
    "checkpoint_minutes": 60.0, "keep_checkpoints": 1, "steps": 2, "rollout_batch_size": 4, "step_batch_size": None,
    "epochs_per_rollout": 1, "group_size": 2, "temperature": 1.0, "top_k": None, "top_p": None, "min_p": None,
    "max_new_tokens": 6, "stop": (), "sampler_cap": None,
    "loss_agg": "sequence_sum", "whiten_advantages": False, "ratio": "none", "ratio_cap": None,
    "clip": None, "clip_high": None, "gae_lambda": 1.0, "kl_coef": 0.5, "reward_clip": None,
    "reward_noise": 0.0, "missing_eos": "subtract", "missing_eos_penalty": None, "mask_truncated": False,
    "overlong_buffer": None, "resample_equal_rewards": 0,
    "eval_prompts": 3, "keep_best": None,
}  # fmt: skip


def algorithm_settings(kl=None, critic=None, dpo=None, **changes) -> AlgorithmSettings:
    """Settings of an algorithm: leave-one-out on two groups of two, unless changed."""
    return AlgorithmSettings(
        **(PLAIN | changes),
        kl=KlSettings(**(KL | (kl or {}))),
        critic=CriticSettings(**(CRITIC | (critic or {}))),
        dpo=DpoSettings(**(DPO | (dpo or {}))),
    )


def no_reward(groups, rows):
    return torch.zeros(groups.completion_ids.shape[:2])


def online_method(
    settings, policy, reference=None, critic=None, *, prompts, reward=no_reward, rows=None, eos_ids=(1,), pad_id=0,
    max_tokens=10**6, layout=Layout.PADDED, processes=None,
) -> OnlineMethod:  # fmt: skip
    """The method on a policy, with `settings.rollout_batch_size` completions of `prompts` a step."""
    processes = processes or Processes()
    sampling = Sampling(settings.temperature, settings.max_new_tokens, eos_ids, pad_id, max_tokens)
    rows = rows if rows is not None else [{"prompt": ids} for ids in prompts]
    collector = Collector(policy, reward, prompts, rows, sampling, settings, processes)
    return OnlineMethod(settings, policy, collector, reference, critic, layout, processes, monitor=dict)


def rollout_of(prompts, completions, rewards, eos_ids=(1,), pad_id=0, scores=None) -> Rollout:
    """Given completions and rewards as a step's rollout."""
    groups = CompletionGroups.from_ids(prompts, completions, pad_id)
    rewards = torch.as_tensor(rewards)
    finished = torch.tensor([[ids[-1] in eos_ids for ids in group] for group in completions])
    known = rewards.nan_to_num() if scores is None else torch.as_tensor(scores)
    dropped = torch.zeros(len(prompts), dtype=torch.bool)
    return Rollout(list(range(len(prompts))), groups, rewards, known, finished, dropped)


def take(method, rollout=None, step=0):
    """All gradients of a step added up (no optimiser step between its updates), and its metrics."""
    if rollout is not None:
        give(method, rollout)
    for update in method.updates(step):
        for loss in update:
            loss().backward()
    return method.metrics()


def give(method, rollout):
    """Let a method collect this rollout at every step."""
    object.__setattr__(method, "collector", _Given(method.collector, rollout))


def gradient(*models):
    """All gradients of some models as one vector."""
    return torch.cat([p.grad.flatten() for m in models for p in m.parameters() if p.grad is not None])


class _Given:
    """A collector whose rollout is given."""

    def __init__(self, collector, rollout):
        self._collector, self._rollout = collector, rollout

    def collect(self, step):
        return self._rollout

    @property
    def prompts_per_step(self):
        return len(self._rollout.places)

    def __getattr__(self, name):
        return getattr(self._collector, name)
