"""A small study, and made-up results of its points."""

import copy
from typing import Any

import yaml

from pipelines.studies.definition import Definition
from pipelines.studies.loading import load_definition

CONTENT = {
    "title": "Noise",
    "question": "Who loses more?",
    "base": ["experiment=tiny"],
    "axes": {
        "method": {"label": "method", "values": {"rloo": ["algorithm=rloo"], "raft": ["algorithm=raft"]}},
        "sigma": {"label": "σ", "setting": "algorithm.reward_noise", "values": [0.0, 3.0]},
    },
    "seeds": {"count": 3, "vary": "policy"},
    "until": "policy",
    "measures": {
        "gold": {"label": "gold reward", "of": "validation/gold_reward", "take": "last"},
        "at": {"label": "gold at matched KL", "of": "validation/gold_reward", "take": "at_kl"},
        "share": {"label": "σ / std", "of": "reward/std", "share_of": "sigma"},
    },
}


def study_file(folder, name="small.yaml", **changes: Any) -> str:
    """A YAML file of the small study, with some of its keys changed or (None) left out."""
    content = {key: value for key, value in (copy.deepcopy(CONTENT) | changes).items() if value is not None}
    (folder / name).write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return str(folder / name)


def small(folder, profile="laptop", overrides=(), count=None, **changes: Any) -> Definition:
    """The small study, loaded."""
    return load_definition(study_file(folder, **changes), profile, overrides, count)
