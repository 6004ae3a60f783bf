"""Algorithms as `conf/` has them on models of a few tokens, with a real critic."""

from pathlib import Path

import torch
import yaml
from transformers import AutoModelForSequenceClassification

from rloo_core.critics import Critic
from rloo_core.layout import Layout
from rloo_core.reward_models import RewardModel
from rloo_core.settings import AlgorithmSettings, CriticSettings, DpoSettings, KlSettings

CONF = Path(__file__).parents[3] / "conf" / "algorithm"
SMALL = {
    "seed": 0, "rollout_batch_size": 8, "max_new_tokens": 6, "steps": 3, "eval_prompts": 3, "eval_every": 0,
    "checkpoint_every": 0, "checkpoint_minutes": 60.0, "learning_rate": 0.01, "warmup_fraction": 0.0,
}  # fmt: skip


def composed(algorithm, **changes) -> AlgorithmSettings:
    """Settings of an algorithm as `conf/algorithm/` has them, small unless changed; `critic_x` is the critic's x."""
    base, own = (yaml.safe_load((CONF / f"{file}.yaml").read_text()) for file in ("_base", algorithm))
    nested = {part: base[part] | own.pop(part, {}) for part in ("kl", "critic", "dpo")}
    values = base | own | SMALL | changes
    for part, inner in nested.items():
        inner |= {key.removeprefix(f"{part}_"): values.pop(key) for key in list(values) if _belongs(key, part)}
    parts = {"kl": KlSettings(**nested["kl"]), "critic": CriticSettings(**nested["critic"])}
    del values["defaults"]
    return AlgorithmSettings(**values | parts | {"dpo": DpoSettings(**nested["dpo"])})


def _belongs(key, part) -> bool:
    return key.startswith(f"{part}_") and key != "kl_coef"


def tiny_reward_model(policy, seed=3, offset=0.4, layout=Layout.PADDED) -> RewardModel:
    """A random reward model of a tiny policy's architecture, with an offset, in the policy's precision."""
    torch.manual_seed(seed)
    classifier = AutoModelForSequenceClassification.from_config(type(policy.config)(**_one_label(policy.config)))
    model = RewardModel(classifier.to(next(policy.parameters()).dtype).eval(), layout)
    model.offset = offset
    return model


def _one_label(config):
    return {k: v for k, v in config.to_dict().items() if k not in ("id2label", "label2id")} | {"num_labels": 1}


def tiny_critic(policy, seed=3, offset=0.4, layout=Layout.PADDED) -> Critic:
    return Critic(tiny_reward_model(policy, seed, offset, layout), layout)


def distance(found, expected) -> float:
    """Of two gradients, relative to the second."""
    return float((found - expected).norm() / expected.norm())


def give(method, rollout):
    """From now on every step of the method has this rollout."""
    object.__setattr__(method.collector, "collect", lambda step: rollout)
    return method


def take_first(method, rollout, updates=1):
    """Gradients of a step's first updates, added up; the others are gone through without any."""
    for index, update in enumerate(give(method, rollout).updates(0)):
        for loss in update if index < updates else []:
            loss().backward()
