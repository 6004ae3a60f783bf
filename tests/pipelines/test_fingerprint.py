"""Fingerprints: what changes a number changes them, and nothing else does."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rloo_core
from pipelines.code_digest import WITHOUT_EFFECT, code_digests
from pipelines.config import load_settings
from pipelines.digests import SMALL, DigestCache
from pipelines.fingerprint import LENGTH, own_parts, resolved_device, stage_fingerprint
from rloo_core.stages import STAGES

BASE = ["compute.threads=2", "sft.epochs=3", "sft.learning_rate=0.002"]  # whatever conf/ has
INPUTS = dict.fromkeys(STAGES, "digest")


def fingerprint(stage, tmp_path, *overrides):
    settings = load_settings([f"paths.root={tmp_path / 'runs'}", *overrides])
    return stage_fingerprint(STAGES[stage], settings, INPUTS)


def stages_changed(tmp_path, before, after):
    first, second = (load_settings([f"paths.root={tmp_path / 'runs'}", *words]) for words in (before, after))
    return {
        name
        for name, stage in STAGES.items()
        if stage_fingerprint(stage, first, INPUTS).hex != stage_fingerprint(stage, second, INPUTS).hex
    }


def test_form(tmp_path):
    made = fingerprint("sft", tmp_path, "sft.epochs=3")
    assert len(made.hex) == LENGTH
    assert set(made.hex) <= set("0123456789abcdef")
    assert made.parts["settings/sft.epochs"] == 3.0
    assert made.parts["inputs/data"] == "digest"
    assert "code/rloo_core.trainer" in made.parts


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("algorithm.kl_coef=0.3", {"policy"}),
        ("sft.epochs=1", {"sft"}),
        ("reward_model.batch_size=32", {"reward_model"}),
        ("seed=1", {"sft", "reward_model", "policy", "evaluation"}),
        ("data.synthetic.test=1000", {"data"}),
        ("compute.threads=1", {"sft", "reward_model", "policy", "evaluation"}),
        ("compute.processes=2", {"sft", "reward_model", "policy"}),
        ("compute.precision=bfloat16", {"sft", "reward_model", "policy", "evaluation"}),
        ("algorithm.checkpoint_every=1", set()),
        ("sft.checkpoint_minutes=1", set()),
        ("sft.keep_checkpoints=3", set()),
        ("tracking.experiment=other", set()),
        ("name=other", set()),
        ("model.lora.alpha=4", set()),  # rank is 0
        ("algorithm.dpo.beta=0.3", set()),  # there are no pairs
        ("model.scratch.layers=2", {"sft"}),  # later stages start from its model
        ("sft.epochs=3.0", set()),  # written differently
        ("sft.learning_rate=2e-3", set()),
    ],
)
def test_settings_change_the_stages_that_read_them(tmp_path, override, stages):
    assert stages_changed(tmp_path, BASE, [*BASE, override]) == stages


def test_the_shape_of_a_new_model_is_nothing_to_the_data(tmp_path):
    assert "data" not in stages_changed(tmp_path, [], ["model.scratch.layers=2"])
    assert "sft" in stages_changed(tmp_path, [], ["model.scratch.layers=2"])


def test_the_run_root_is_no_part_of_it(tmp_path):
    elsewhere = load_settings([f"paths.root={tmp_path / 'elsewhere'}"])
    assert stage_fingerprint(STAGES["sft"], elsewhere, INPUTS) == fingerprint("sft", tmp_path)


def test_inputs_count_by_their_outputs(tmp_path):
    settings = load_settings([f"paths.root={tmp_path}"])
    other = stage_fingerprint(STAGES["sft"], settings, {"data": "other digest"})
    assert other.hex != fingerprint("sft", tmp_path).hex
    with pytest.raises(ValueError, match=r"needs the digests of .*missing: \['data'\]"):
        stage_fingerprint(STAGES["sft"], settings, {})


def local_run(tmp_path, rows="rows", model="model"):
    return ["data=hh", f"data.path={tmp_path / rows}", "model=pretrained", f"model.path={tmp_path / model}"]


@pytest.fixture
def local_files(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"chosen": "a", "rejected": "b"}\n')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


def test_local_data_counts_by_its_bytes(local_files):
    before = fingerprint("data", local_files, *local_run(local_files))
    (local_files / "rows").rename(local_files / "moved")
    moved = fingerprint("data", local_files, *local_run(local_files, rows="moved"))
    assert moved == before
    (local_files / "moved" / "train.jsonl").write_text('{"chosen": "a", "rejected": "c"}\n')
    changed = fingerprint("data", local_files, *local_run(local_files, rows="moved"))
    assert {name for name in changed.parts if changed.parts[name] != before.parts[name]} == {"files/data/train.jsonl"}


def test_local_weights_count_for_sft_and_the_tokenizer_for_the_data_too(local_files):
    run = local_run(local_files)
    before = {name: fingerprint(name, local_files, *run).hex for name in ("data", "sft")}
    (local_files / "model" / "model.safetensors").write_bytes(b"WEIGHTS")
    assert fingerprint("data", local_files, *run).hex == before["data"]
    assert fingerprint("sft", local_files, *run).hex != before["sft"]
    (local_files / "model" / "tokenizer.json").write_text("[]")
    assert fingerprint("data", local_files, *run).hex != before["data"]


def test_a_reward_functions_code_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rewards.py").write_text("def score(prompts, completions):\n    return [0.0]\n")
    override = "reward.terms=['my_rewards:score']"
    before = fingerprint("policy", tmp_path, override)
    (tmp_path / "my_rewards.py").write_text("def score(prompts, completions):\n    return [1.00]\n")
    assert fingerprint("policy", tmp_path, override).hex != before.hex
    assert "my_rewards" not in sys.modules


def test_auto_is_the_device_it_chooses(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resolved_device("auto") == "cpu"
    assert stages_changed(tmp_path, [], ["compute.device=auto"]) == set()
    assert "sft" in stages_changed(tmp_path, [], ["compute.device=cuda"])


def test_the_same_in_another_process(tmp_path):
    code = (
        "from pipelines.config import load_settings; from pipelines.fingerprint import stage_fingerprint;"
        "from rloo_core.stages import STAGES;"
        f"settings = load_settings(['paths.root={tmp_path}']);"
        "print(stage_fingerprint(STAGES['sft'], settings, {'data': 'digest'}).hex)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == fingerprint("sft", tmp_path).hex


def write(folder: Path, **modules: str) -> dict[str, Path]:
    package = folder / "lib"
    for name, source in {"__init__": "", **modules}.items():
        file = package / f"{name.replace('__in__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
    return {"lib": package}


def test_code_reaches_what_is_imported_and_no_more(tmp_path):
    packages = write(
        tmp_path,
        stage="""
            import os
            from lib import shared
            from lib.sub import inner

            def run():
                from lib.lazy import function
        """,
        shared="",
        lazy="from .relative import x",
        relative="x = 1",
        unrelated="",
        sub__in____init__="from ..in_init import y",
        sub__in__inner="from ..parent import z",
        in_init="y = 1",
        parent="z = 1",
    )
    assert set(code_digests("lib.stage", packages)) == {
        "lib", "lib.stage", "lib.shared", "lib.lazy", "lib.relative",
        "lib.sub", "lib.sub.inner", "lib.in_init", "lib.parent",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("source", "same"),
    [
        ('"""Better words."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1  # why\n', True),
        ("def f(x): return x + 2", False),
        ("def f(y): return y + 1", False),
        ('def f(x):\n    "doc"\n    return x + 1', True),
        ('T = "text"\ndef f(x): return x + 1', False),
    ],
)
def test_comments_and_docstrings_do_not_count(tmp_path, source, same):
    before = code_digests("lib.a", write(tmp_path / "1", a="def f(x): return x + 1"))
    after = code_digests("lib.a", write(tmp_path / "2", a=source))
    assert (before == after) is same


def test_a_module_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"expected a module in lib, got lib\.nowhere"):
        code_digests("lib.nowhere", write(tmp_path))


def test_every_stage_has_code():
    for stage in STAGES.values():
        digests = code_digests(stage.module, {"rloo_core": Path(rloo_core.__file__).parent})
        assert stage.module in digests


def test_modules_without_effect_hold_types_alone():
    """They are left out of the code's digest, so nothing in them may compute a number."""
    for module in sorted(WITHOUT_EFFECT - {"rloo_core.stages"}):
        tree = ast.parse((Path(rloo_core.__file__).parent.parent / f"{module.replace('.', '/')}.py").read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        bodies = [statement for function in functions for statement in getattr(function, "body", [])]
        assert all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in bodies), module


def test_large_files_are_read_once(tmp_path, monkeypatch):
    big = tmp_path / "big"
    big.write_bytes(b"x" * SMALL)
    digest = DigestCache(tmp_path / "cache").sha256(big)
    monkeypatch.setattr("pipelines.digests.sha256_of", lambda path: "read again")
    assert DigestCache(tmp_path / "cache").sha256(big) == digest
    big.write_bytes(b"y" * (SMALL + 1))
    assert DigestCache(tmp_path / "cache").sha256(big) == "read again"


def test_a_damaged_cache_only_costs_time(tmp_path):
    big = tmp_path / "big"
    big.write_bytes(b"x" * SMALL)
    cache = DigestCache(tmp_path)
    digest = cache.sha256(big)
    (tmp_path / "sha256.json").write_text("{broken")
    assert cache.sha256(big) == digest


def test_own_parts_know_no_inputs(tmp_path):
    settings = load_settings([f"paths.root={tmp_path}"])
    assert not any(name.startswith("inputs/") for name in own_parts(STAGES["policy"], settings))
