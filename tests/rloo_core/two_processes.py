"""Every kind of training step on five ragged prompts, by one process or by several.

`test_two_processes.py` calls `every_case` itself, and has this file run by `accelerate launch` in two processes:
importing torch twice costs more than all cases together.
"""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import GPTNeoXForSequenceClassification

from rloo_core.algorithms.choices import updates_per_step
from rloo_core.algorithms.demonstrations import GivenCompletions
from rloo_core.algorithms.dpo import PreferenceOptimisation
from rloo_core.algorithms.online import OnlineMethod
from rloo_core.algorithms.reward_modelling import RewardModelling
from rloo_core.algorithms.sft import SupervisedMethod
from rloo_core.critics import Critic
from rloo_core.layout import Layout
from rloo_core.logprobs import reference_logprobs
from rloo_core.observer import SilentObserver
from rloo_core.optimization import Part
from rloo_core.reward_models import RewardModel
from rloo_core.trainer import TrainingLoop, make_accelerator
from tests.rloo_core.algorithms.building import algorithm_settings, online_method
from tests.rloo_core.stages.small import COMPUTE
from tests.rloo_core.tiny import tiny_neox

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [5], [14, 15], [16, 17, 18, 19], [20, 21, 22, 3, 4, 5]]
COMPLETIONS = [
    [[6, 7, 8, 1], [9, 1]], [[10, 11, 12, 13, 14, 1], [15, 1]], [[1], [16, 17, 18]],
    [[19, 20, 1], [21, 22, 3, 4, 5, 6, 7, 1]], [[8, 1], [9, 10, 11, 1]],
]  # fmt: skip
STEPS = 2
TRAINING = {
    "max_grad_norm": 1e9,  # no clipping: the gradients are those of the loss
    "adam_epsilon": 1.0,  # a step that grows with the gradient: rounding is not blown up where the gradient is nearly 0
    "learning_rate": 0.05, "eval_every": 0, "steps": STEPS, "rollout_batch_size": 10,
}  # fmt: skip
CLIPPED = {"surrogate": "reinforce", "ratio": "token", "clip": 0.2, "epochs_per_rollout": 2}

ONLINE = {
    "rloo": {},
    "reinforce": {"advantage": "running_mean"},  # its first batch is compared as a whole
    "ppo": CLIPPED | {
        "action": "token", "advantage": "gae", "group_size": 1, "rollout_batch_size": 5, "step_batch_size": 3,
        "whiten_advantages": True, "gae_lambda": 0.9, "loss_agg": "token_mean",
        "critic": {"learning_rate": 0.02, "value_clip": 0.2},
    },
    "grpo": CLIPPED | {
        "advantage": "group_standardised", "loss_agg": "token_mean", "step_batch_size": 6,
        "kl": {"place": "loss", "estimator": "k3", "monitor": "k3"},
    },
    "one prompt an update": CLIPPED | {"ratio": "sequence", "step_batch_size": 2},  # the other process is idle
    "running mean, whitened": {"advantage": "running_mean", "group_size": 1, "rollout_batch_size": 5,
                               "whiten_advantages": True},
}  # fmt: skip
OFFLINE = ("dpo", "reward model", "sft", "sft, one row a step")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass
class Trained:
    """What came of a training: gradients of every update, metrics of every step, weights."""

    gradients: list[torch.Tensor]
    history: list[dict[str, float]]
    weights: torch.Tensor
    advantages: list[torch.Tensor] = field(default_factory=list)
    completions: list[list[tuple]] = field(default_factory=list)


def flat(parts, gradients=False):
    """Parameters or gradients of several models as one vector."""
    parameters = [p for part in parts for p in part.model.parameters()]
    return torch.cat([(p.grad if gradients else p).detach().flatten().clone() for p in parameters])


class Stopped(Exception):
    pass


def watch(method, completions, stop_at=None):
    """Let an online method remember its advantages, and stop where it is told."""
    advantages, finish, collect = [], method._finish, method.collector.collect

    def finished():
        finish()
        advantages.append(method._metrics.gathered["advantage"])

    def collected(step):
        if step == stop_at:
            raise Stopped
        rollout = collect(step)
        own = list(zip(rollout.places, rollout.groups.completion_lists(), strict=True))
        completions.append(sorted(method.processes.gather(own)))
        return rollout

    method._finish = finished
    object.__setattr__(method.collector, "collect", collected)
    return advantages


def train(directory, model, make_method, settings, updates=1, critic=None, stop_at=None):
    """Run the real loop; `make_method` gets it and gives the method."""
    directory.mkdir(parents=True, exist_ok=True)
    loop = TrainingLoop(
        make_accelerator(COMPUTE), model, settings, STEPS, directory, SilentObserver(),
        updates_per_step=updates, critic=None if critic is None else Part("critic", critic, 0.02),
    )  # fmt: skip
    gradients, completions = [], []
    loop.optimizer.optimizer.register_step_pre_hook(lambda *_: gradients.append(flat(loop.parts, gradients=True)))
    method = make_method(loop)
    advantages = watch(method, completions, stop_at) if isinstance(method, OnlineMethod) else []
    loop.run(method)
    loop.processes.sum(torch.zeros(()))  # the first process has written its last line
    return Trained(gradients, loop.history(), flat(loop.parts), advantages, completions)


def longest_wins(groups, rows):
    """A reward that differs between completions, of the policy's precision."""
    ids = groups.completion_ids.masked_fill(~groups.response_mask, 0)
    return (ids * torch.arange(1, ids.shape[-1] + 1)).sum(-1).double().sin()


def online(directory, changes, dtype, stop_at=None, **training):
    """An online method; every second prompt of the table is the same."""
    own = algorithm_settings(**(TRAINING | {"schedule": "linear"} | changes | training))
    policy, reference = tiny_neox(seed=0).to(dtype), tiny_neox(seed=1).to(dtype)
    critic = Critic(reward_model(dtype), Layout.SHARED) if own.advantage == "gae" else None

    def reward(groups, rows):
        return longest_wins(groups, rows).to(dtype)

    def make(loop):
        method = online_method(
            own, loop.model, reference_logprobs(reference, 1.0, Layout.SHARED),
            loop.parts[1].model if critic is not None else None,
            prompts=PROMPTS, reward=reward, layout=Layout.SHARED, max_tokens=40, processes=loop.processes,
        )  # fmt: skip
        object.__setattr__(method.collector, "policy", loop.accelerator.unwrap_model(loop.model))
        return method

    return train(directory, policy, make, own, updates_per_step(own), critic, stop_at)


def reward_model(dtype):
    torch.manual_seed(3)
    config = tiny_neox().config
    config.num_labels = 1
    return RewardModel(GPTNeoXForSequenceClassification(config).eval().to(dtype), Layout.SHARED)


def offline(directory, name, dtype):
    own = algorithm_settings(
        **(TRAINING | {"action": "pair", "advantage": None, "surrogate": "dpo", "step_batch_size": 6})
    )
    pairs = GivenCompletions(PROMPTS, COMPLETIONS, 0, 40)
    none = GivenCompletions([], [], 0, 40)
    if name == "dpo":
        reference = reference_logprobs(tiny_neox(seed=1).to(dtype), 1.0, Layout.SHARED)
        return train(
            directory, tiny_neox().to(dtype),
            lambda loop: PreferenceOptimisation(
                own, loop.model, reference, pairs, pairs, Layout.SHARED, loop.processes, monitor=dict
            ),
            own, updates_per_step(own),
        )  # fmt: skip
    if name == "reward model":
        return train(
            directory, reward_model(dtype),
            lambda loop: RewardModelling(loop.model, pairs, pairs, 5, 0, loop.processes), own,
        )  # fmt: skip
    size = 1 if name.endswith("a step") else 5
    rows = GivenCompletions(PROMPTS, [group[:1] for group in COMPLETIONS], 0, 20)
    return train(
        directory, tiny_neox().to(dtype),
        lambda loop: SupervisedMethod(loop.model, rows, none, size, 0, loop.processes), own,
    )  # fmt: skip


def every_case(root):
    """Each method in each precision, by name."""
    found = {}
    for precision, dtype in DTYPES.items():
        for name, changes in ONLINE.items():
            found[name, precision] = online(root / f"{name}-{precision}", changes, dtype)
        for name in OFFLINE:
            found[name, precision] = offline(root / f"{name}-{precision}", name, dtype)
    return found


def stopped_and_resumed(root):
    """The same training without a stop, and stopped in its second step and taken up again."""
    changes = ONLINE["ppo"] | {"checkpoint_every": 1}
    whole = online(root / "whole", changes, torch.float32)
    try:
        online(root / "stopped", changes, torch.float32, stop_at=1)
        raise AssertionError("it was to be stopped")
    except Stopped:
        pass
    return whole, online(root / "stopped", changes, torch.float32)


class BestAfterOne(SupervisedMethod):
    """Measures best after its first step."""

    def evaluate(self, step):
        return {"validation/loss": abs(step - 1.0)}


def best_kept(root):
    """Weights after one step of two; and what `keep_best` leaves of two steps, stopped in the second and resumed."""

    def run(name, steps, stop_at=None):
        own = algorithm_settings(
            **(TRAINING | {"eval_every": 1, "checkpoint_every": 1, "keep_best": "-validation/loss"})
        )
        directory = root / name
        directory.mkdir(parents=True, exist_ok=True)
        loop = TrainingLoop(make_accelerator(COMPUTE), tiny_neox(), own, steps, directory, SilentObserver())
        rows = GivenCompletions(PROMPTS, [group[:1] for group in COMPLETIONS], 0, 20)
        method = BestAfterOne(loop.model, rows, rows, 5, 0, loop.processes)
        take = method.updates

        def updates(step):
            if step == stop_at:
                raise Stopped
            return take(step)

        method.updates = updates
        with suppress(Stopped):
            loop.run(method)
        if stop_at is not None:
            return None
        last = flat(loop.parts)
        summary = loop.take_best()
        loop.processes.sum(torch.zeros(()))
        return Trained([last], [summary], flat(loop.parts))

    run("stopped", STEPS, stop_at=1)
    return run("one step", 1), run("stopped", STEPS)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    torch.set_num_threads(1)
    anything = COMPUTE if torch.cuda.is_available() else COMPUTE.model_copy(update={"device": "auto"})
    accelerator = make_accelerator(anything)  # the first call decides, and must see the other process
    cases = every_case(place / "runs")
    cases["whole", "float32"], cases["resumed", "float32"] = stopped_and_resumed(place / "resuming")
    cases["one step", "float32"], cases["best", "float32"] = best_kept(place / "best")
    torch.save(
        {key: vars(case) for key, case in cases.items()} | {"processes": accelerator.num_processes},
        place / f"process-{accelerator.process_index}.pt",
    )
    accelerator.end_training()
