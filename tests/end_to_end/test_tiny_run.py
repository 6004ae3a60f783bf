"""The whole pipeline, as a person starts it: `rloo run experiment=tiny` in an empty directory."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.conftest import Run, rloo

STAGES = ["data", "sft", "reward_model", "policy", "evaluation"]


def stage_output(run: Run, stage: str) -> Path:
    (directory,) = (run.root / "store" / stage).iterdir()
    return directory


def client(run: Run):
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{run.root}/mlflow.db", f"sqlite:///{run.root}/mlflow.db")


@pytest.fixture(scope="module")
def runs(tiny_run):
    """The MLflow runs of the tiny run, by stage; the parent under ""."""
    api = client(tiny_run)
    experiment = next(e for e in api.search_experiments() if e.name != "Default")
    found = api.search_runs([experiment.experiment_id])
    assert len(found) == 1 + len(STAGES)  # in a dictionary, a second run of a stage would be hidden
    return {run.data.tags.get("stage", ""): run for run in found}


def test_it_ends_with_a_table_and_says_what_to_type_next(tiny_run):
    assert tiny_run.process.stderr == ""
    for expected in ("win rate", "gold reward", "KL, nats", "best of n", "next       rloo ui", "/model"):
        assert expected in tiny_run.process.stdout
    assert max(map(len, tiny_run.process.stdout.splitlines())) <= 200


def test_nothing_is_left_outside_the_run_root(tiny_run):
    assert [p.name for p in (tiny_run.place / "cwd").iterdir()] == ["runs"]
    assert list((tiny_run.place / "home").iterdir()) == []


def test_outputs_are_ordinary_hugging_face_directories(tiny_run):
    for stage in ("sft", "policy"):
        model, info = AutoModelForCausalLM.from_pretrained(
            stage_output(tiny_run, stage) / "model", output_loading_info=True
        )
        assert not info["missing_keys"]
        assert model.config.pad_token_id != model.config.eos_token_id
    directory = stage_output(tiny_run, "reward_model") / "model"
    model, info = AutoModelForSequenceClassification.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"]
    assert model.config.num_labels == 1
    assert isinstance(model.config.reward_offset, float)
    assert len(AutoTokenizer.from_pretrained(directory)) == model.config.vocab_size


def test_one_finished_run_a_stage_under_one_parent(runs):
    assert sorted(runs) == sorted(["", *STAGES])
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parents = {run.data.tags.get("mlflow.parentRunId") for stage, run in runs.items() if stage}
    assert parents == {runs[""].info.run_id}


def test_metrics_stand_by_step_under_the_fields_names(tiny_run, runs):
    api = client(tiny_run)
    for stage, name, steps in (
        ("sft", "loss", 24),
        ("sft", "validation/loss", 4),
        ("reward_model", "accuracy", 8),
        ("policy", "reward/mean", 4),
        ("policy", "kl/mean", 4),
        ("policy", "validation/gold_reward", 3),
    ):
        history = api.get_metric_history(runs[stage].info.run_id, name)
        assert len({point.step for point in history}) == len(history) == steps, (stage, name)
    wanted = {"win_rate", "win_rate_low", "win_rate_high", "proxy_reward", "gold_reward", "kl", "length", "finished"}
    for policy in ("sft", "policy"):
        for mode in ("greedy", "sampled"):
            prefix = f"evaluation/{policy}/{mode}/"
            found = {name.removeprefix(prefix) for name in runs["evaluation"].data.metrics if name.startswith(prefix)}
            assert wanted <= found


def test_parameters_datasets_figure_table_and_config_are_logged(tiny_run, runs, tmp_path):
    api = client(tiny_run)
    assert runs["policy"].data.params["algorithm.steps"] == "4"  # experiment=tiny's, nobody's default
    datasets = {item.dataset.name for item in api.get_run(runs["sft"].info.run_id).inputs.dataset_inputs}
    assert any("demonstrations" in name for name in datasets), datasets

    def artifacts(stage, path=None):
        return {item.path for item in api.list_artifacts(runs[stage].info.run_id, path)}

    assert "figures/reward_and_kl.png" in artifacts("policy", "figures")
    assert "tables/samples.json" in artifacts("evaluation", "tables")
    (config,) = [path for path in artifacts("", "files") | artifacts("") if path.endswith("config.yaml")]
    kept = yaml.safe_load(Path(api.download_artifacts(runs[""].info.run_id, config, str(tmp_path))).read_text())
    assert (kept["name"], kept["algorithm"]["steps"]) == ("tiny", 4)


def test_three_models_are_registered_with_where_they_came_from(tiny_run):
    api = client(tiny_run)
    names = {model.name: model for model in api.search_registered_models()}
    assert sorted(name.rsplit("-", 1)[-1] for name in names) == ["model", "policy", "sft"]
    policy = next(name for name in names if name.endswith("-policy"))
    (version,) = api.search_model_versions(f"name='{policy}'")
    assert {"from.sft", "from.reward_model", "from.data"} <= set(version.tags)


GREEDY = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
for prompt in json.load(sys.stdin):
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    output = model.generate(**ids, do_sample=False, max_new_tokens=32)
    print(json.dumps(tokenizer.decode(output[0, ids["input_ids"].shape[1]:], skip_special_tokens=True)))
"""


def test_a_tracked_model_reproduces_the_logged_greedy_completions_in_a_fresh_process(tiny_run, runs, tmp_path):
    """Plain `transformers` on the artifact that MLflow has, against the samples table that MLflow has."""
    api = client(tiny_run)
    table = json.loads(
        Path(api.download_artifacts(runs["evaluation"].info.run_id, "tables/samples.json", str(tmp_path))).read_text()
    )
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    (output,) = api.get_run(runs["policy"].info.run_id).outputs.model_outputs
    artifact = api.get_logged_model(output.model_id).artifact_location.removeprefix("file://")
    process = subprocess.run(
        [sys.executable, "-c", GREEDY, f"{artifact}/model"], input=json.dumps([row["prompt"] for row in rows]),
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert [json.loads(line) for line in process.stdout.splitlines()] == [row["policy_greedy"] for row in rows]
    assert len(rows) == 4


MODULES_AT_THE_END = "import atexit, sys; atexit.register(lambda: open('{}', 'w').write(' '.join(sys.modules)))"


def test_a_second_run_reuses_everything(tiny_run, tmp_path):
    before = sorted(path for path in (tiny_run.root / "store").rglob("*"))
    (tmp_path / "sitecustomize.py").write_text(MODULES_AT_THE_END.format(tmp_path / "modules"))
    again = rloo(tiny_run.place, "run", "experiment=tiny", "--no-prefect", path=tmp_path)
    assert again.process.returncode == 0, again.output
    loaded = set((tmp_path / "modules").read_text().split())
    assert "mlflow" in loaded
    assert not loaded & {"torch", "prefect", "matplotlib"}  # nothing is trained, nothing is drawn again
    assert re.findall(r"^(\w+) +reused", again.process.stdout, re.MULTILINE) == list(STAGES)
    assert sorted(path for path in (tiny_run.root / "store").rglob("*")) == before
    assert rloo(tiny_run.place, "plan", "experiment=tiny").process.returncode == 0
    assert rloo(tiny_run.place, "plan", "experiment=tiny", "algorithm.kl_coef=0.3").process.returncode == 3


def weights(run: Run, stage: str = "policy"):
    return load_file(stage_output(run, stage) / "model" / "model.safetensors")


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tiny_run, tmp_path):
    """A second run in another place, without Prefect, ends with the same policy, bit for bit; seed 1 with another."""
    again = rloo(tmp_path / "again", "run", "experiment=tiny", "--no-prefect")
    other = rloo(tmp_path / "other", "run", "experiment=tiny", "seed=1", "--no-prefect")
    assert again.process.returncode == other.process.returncode == 0, again.output + other.output
    first, second, third = weights(tiny_run), weights(again), weights(other)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], third[name]) for name in first)
    assert [json.loads((stage_output(r, "policy") / "manifest.json").read_text())["digest"] for r in (again,)] == [
        json.loads((stage_output(tiny_run, "policy") / "manifest.json").read_text())["digest"]
    ]
