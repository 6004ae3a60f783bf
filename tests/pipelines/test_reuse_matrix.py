"""The reuse matrix: a setting is in a stage's fingerprint exactly if the stage reads it, seen while it runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from pipelines.config import load_settings
from pipelines.config_overrides import known_keys
from pipelines.fingerprint import own_parts
from pipelines.unread import NO_EFFECT
from rloo_core.rules import flatten
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES
from tests.pipelines.tracing import MICRO, reads
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

# Read by who launches a stage, and part of the result: sums over processes differ in the last bits.
LAUNCH = "compute.processes"
# Read, and in the fingerprint under another name: the device it chooses, the bytes of local files.
OTHERWISE = ("compute.device", "data.path", "model.path", "reward_model.path")
NAMED = {"advantage": "running_mean"}  # settings that name something which must be there
VARIANTS = [
    "",
    "algorithm=ppo model.lora.rank=2",
    "algorithm=dpo",
    "algorithm=dapo algorithm.overlong_buffer=2",
    "algorithm=grpo algorithm.kl_coef=0.1",
    "algorithm=reinforce algorithm.kl.target=1.0",
    "OWN",
    "OWN model.lora.rank=2 algorithm=dpo",
    "OWN reward_model=none reward.terms=[repetition] sft.keep_best=-validation/loss",
]  # OWN: tables and a pretrained model from files


def own_input(place: Path) -> list[str]:
    """Tables of one's own and a model that was trained elsewhere, as files, and the settings that name them."""
    place.mkdir()
    for name, columns in (("preferences", ("chosen", "rejected")), ("demonstrations", ("completion",))):
        rows = [
            {"prompt": f"w{7 + i} w{3 + i}", **{c: " ".join(["w5"] * (k + 1)) for k, c in enumerate(columns)}}
            for i in range(12)
        ]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model: Any = tiny_neox()
    model.save_pretrained(place / "model")
    tiny_tokenizer().save_pretrained(place / "model")
    return [
        "data=tables", f"data.path={place}", "model=pretrained", f"model.path={place}/model",
        "data.max_prompt_tokens=8", "data.max_total_tokens=16", "data.validation_fraction=0.3",
        "data.test_fraction=0.3", "sft.batch_size=2", "reward_model.batch_size=2",
    ]  # fmt: skip


def in_fingerprint(settings: ExperimentSettings, stage: str) -> set[str]:
    parts = own_parts(STAGES[stage], settings)
    return {name.removeprefix("settings/") for name in parts if name.startswith("settings/")}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_fingerprint_holds_what_is_read_and_nothing_else(variant: str, tmp_path: Path) -> None:
    own = own_input(tmp_path / "own") if variant.startswith("OWN") else []
    typed = [*MICRO, f"paths.root={tmp_path}/runs", *own, *variant.removeprefix("OWN").split()]
    settings = load_settings(typed)
    wrong = {}
    for stage, read in reads(settings, tmp_path / "stages").items():
        counted = {name for name in read if name not in OTHERWISE and name.rpartition(".")[2] not in NO_EFFECT}
        have = in_fingerprint(settings, stage) - {LAUNCH, *OTHERWISE}
        if counted != have:
            wrong[stage] = {
                "read, but not in it": sorted(counted - have),
                "in it, but not read": sorted(have - counted),
            }
    assert wrong == {}, "see pipelines/unread.py"


def another(kind: Any, value: Any) -> Any:
    """A different value of a setting's type."""
    if get_origin(kind) is Literal:
        return next(option for option in get_args(kind) if option != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return (*value, "another")
    if isinstance(value, str):
        return f"{value}x"
    options = [option for option in get_args(kind) if option is not type(None)]
    return {int: 3, float: 3.0, str: "another"}.get(_plain(options[0]), 3.0)


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def changed(settings: BaseModel, key: str) -> Any:
    """The settings with one of them changed, whatever rules say."""
    first, _, rest = key.partition(".")
    value = getattr(settings, first)
    kind = type(settings).model_fields[first].annotation
    other = changed(value, rest) if rest else NAMED.get(first) or another(kind, value)
    return settings.model_copy(update={first: other})


def matrix() -> Iterator[str]:
    """Every setting; those that name files have tests of their own (test_fingerprint.py)."""
    files = ("data.source", "data.path", "model.path", "reward_model.path", "reward.terms", "compute.device")
    yield from (key for key in known_keys() if key not in files)


def test_changing_any_setting_changes_the_stages_that_have_it_in_their_fingerprint(tmp_path: Path) -> None:
    """For every setting of conf/; that these are the stages that read it is the test above."""
    settings = load_settings([*MICRO, f"paths.root={tmp_path}/runs"])
    before = {name: own_parts(stage, settings) for name, stage in STAGES.items()}
    have = {name: in_fingerprint(settings, name) for name in STAGES}
    for key in matrix():
        after = changed(settings, key)
        assert flatten(after.model_dump())[key] != flatten(settings.model_dump())[key], key
        differ = {name for name, stage in STAGES.items() if own_parts(stage, after) != before[name]}
        expected = {name for name in STAGES if key in have[name]}
        assert expected <= differ, key
        # a switch may turn on what it guards, in the stages that it is read by
        assert differ == expected, key
