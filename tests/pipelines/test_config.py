# ruff: noqa: E501  (the sentences are what is tested, each on one line)
"""The configuration: every experiment composes, every mistake gets a sentence that helps."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipelines.config import load_settings, to_yaml
from pipelines.config_errors import OLD_NAMES, ConfigError
from pipelines.config_overrides import group_options, known_keys
from rloo_core.settings import ExperimentSettings


def problems(*overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_settings(list(overrides))
    return caught.value.problems


def problem(*overrides: str) -> str:
    found = problems(*overrides)
    assert len(found) == 1, found
    return found[0]


def model_in(place: Path) -> Path:
    """A directory that looks like a model."""
    (place / "config.json").write_text("{}")
    return place


@pytest.mark.parametrize("experiment", group_options()["experiment"])
def test_every_experiment_composes_and_validates(experiment, tmp_path):
    overrides = [f"experiment={experiment}"]
    if experiment in ("hh_stories", "hh_smollm2"):
        overrides.append("data.path=owner/rows")
    if experiment == "hh_stories":
        overrides.append(f"model.path={model_in(tmp_path)}")
    assert load_settings(overrides).name == experiment


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group, options in group_options().items() for option in options]
)
def test_every_file_of_conf_can_be_chosen(group, option, tmp_path):
    path = f"model.path={model_in(tmp_path)}"
    overrides = [f"{group}={option}", path, "model.chat_template=true"]
    if group == "model":
        overrides = [f"{group}={option}", *([path] if option == "pretrained" else [])]
    if (group == "data" and option != "synthetic") or option.startswith("hh_"):
        overrides.append("data.path=owner/rows")
    if option == "none":
        overrides.append("reward=gold")
    if option == "hh_smollm2":
        overrides.append("model.gguf_package=null")
    assert isinstance(load_settings(overrides), ExperimentSettings)


def test_the_papers_recipe():
    settings = load_settings(["experiment=tldr_pythia_6.9b"])
    assert (settings.sft.learning_rate, settings.sft.schedule, settings.sft.epochs) == (2e-5, "cosine", 2.0)
    assert (settings.reward_model.learning_rate, settings.reward_model.epochs) == (1e-5, 1.0)
    assert (settings.algorithm.learning_rate, settings.algorithm.schedule) == (1e-6, "constant")
    assert (settings.algorithm.steps, settings.algorithm.rollout_batch_size, settings.algorithm.kl_coef) == (
        600,
        512,
        0.03,
    )
    assert (settings.data.max_prompt_tokens, settings.data.max_total_tokens) == (448, 512)
    hh = load_settings(["experiment=hh_pythia_6.9b"])
    assert (hh.algorithm.steps, hh.algorithm.kl_coef, hh.data.max_prompt_tokens) == (393, 0.10, 348)
    assert load_settings(["experiment=hh_llama_7b"]).sft.epochs == 1.0


def test_one_seed_for_training_another_for_data():
    settings = load_settings(["seed=7"])
    assert [getattr(settings, part).seed for part in ("sft", "reward_model", "algorithm", "evaluation")] == [7] * 4
    assert settings.data.seed == 0


def test_the_command_line_wins_over_the_experiment_and_the_experiment_over_the_groups():
    assert load_settings(["experiment=tiny"]).algorithm.steps == 4
    assert load_settings(["algorithm.steps=9", "experiment=tiny"]).algorithm.steps == 9


def test_evaluation_samples_as_training_did():
    settings = load_settings(["algorithm.temperature=0.5", "algorithm.max_new_tokens=20"])
    assert (settings.evaluation.temperature, settings.evaluation.max_new_tokens) == (0.5, 20)


def test_relative_paths_start_where_the_command_is_typed(tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    settings = load_settings(["data=hh", "data.path=rows", "model.path=owner/name"])
    assert settings.paths.root == str(tmp_path / "runs")
    assert settings.data.path == str(tmp_path / "rows")
    assert settings.model.path == "owner/name"
    both = load_settings(["data=hh", 'data.path="rows,owner/name"', "model.path=owner/name"])
    assert both.data.path == f"{tmp_path / 'rows'},owner/name"
    assert load_settings(["paths.root=~/elsewhere"]).paths.root == str(Path.home() / "elsewhere")


def test_yaml_is_the_whole_truth():
    settings = load_settings(["experiment=tiny", "model.lora.target_modules=[a,b]"])
    assert ExperimentSettings(**OmegaConf.to_container(OmegaConf.create(to_yaml(settings)))) == settings


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algorithm.group_siz=2", "there is no setting algorithm.group_siz; did you mean algorithm.group_size?"),
        ("++algorithm.group_siz=2", "there is no setting algorithm.group_siz; did you mean algorithm.group_size?"),
        ("+algorithm.group_siz=2", "there is no setting algorithm.group_siz; did you mean algorithm.group_size?"),
        ("+seed=1", "+seed=1: seed exists already; write it without the +"),
        ("algoritm=rloo", "there is no setting algoritm; did you mean algorithm?"),
        ("zzz=1", "there is no setting zzz; `rloo config` prints them all"),
        ("compute.zzz=1", "there is no setting compute.zzz; compute has device, processes, threads, precision, sampling_precision, max_tokens_per_batch, layout, attention and gradient_checkpointing"),
        ("kl_coef=1", "there is no setting kl_coef; did you mean algorithm.kl_coef?"),
        ("rloo_k=4", "rloo_k is called algorithm.group_size here"),
        ("algorithm.num_generations=4", "algorithm.num_generations is called algorithm.group_size here"),
        ("beta=0.1", "beta is called algorithm.kl_coef here"),
        ("max_completion_length=9", "max_completion_length is called algorithm.max_new_tokens here"),
        ("sft.num_train_epochs=1", "sft.num_train_epochs is called sft.epochs here"),
        ("data=synthetik", "data=synthetik, but conf/data has hh, synthetic, tables and tldr; did you mean synthetic?"),
        ("~sft.epochs", "~sft.epochs: settings cannot be removed; set a value instead (null where `rloo config` shows null)"),
        ("data.synthetic={prompts: 1}", "data.synthetic is a section; give its settings one by one, e.g. data.synthetic.prompts=..."),
        ("algorithm={steps: 1}", "algorithm is a section; give its settings one by one, e.g. algorithm.seed=..."),
        ("data@x=hh", "data@x=hh: packages (@) are not offered; choose a file with data=NAME"),
        ("seed=", "seed= has no value; seed needs one"),
        ("data.max_rows=", "data.max_rows= has no value; write data.max_rows=null for none"),
        ("algorithm.missing_eos_penalty=", "algorithm.missing_eos_penalty= has no value; write algorithm.missing_eos_penalty=null for none"),
        ("data=", "data= has no value; conf/data has hh, synthetic, tables and tldr"),
        ("sed=", "there is no setting sed; did you mean seed?"),
        ("seed=abc", "seed=abc, but it must be a whole number"),
        ("algorithm.temperature=-1", "algorithm.temperature=-1, but it must be above 0"),
        ("data.path=[a,b]", "data.path=[a,b], but it must be text, not a list; several are one text with commas: 'data.path=\"a,b\"'"),
        ("model.path=[a]", "model.path=[a], but it must be text, not a list"),
        ("name=true", "name=true, but it must be text; quote it: 'name=\"true\"'"),
        ("model=pretrained", "model=pretrained needs model.path=DIRECTORY_OR_HUB_ID"),
        ("paths.root=a\0b", "'paths.root=a\\x00b': NUL bytes and bytes that are not UTF-8 are refused; no setting and no path needs them"),
        ("name=\udcff", "'name=\\udcff': NUL bytes and bytes that are not UTF-8 are refused; no setting and no path needs them"),
        ("sft.adam_beta2=1", "sft.adam_beta2=1, but it must be below 1, e.g. sft.adam_beta2=0.999"),
        ("reward_model.adam_beta2=1", "reward_model.adam_beta2=1, but it must be below 1, e.g. reward_model.adam_beta2=0.999"),
        ("algorithm.adam_beta2=1", "algorithm.adam_beta2=1, but it must be below 1, e.g. algorithm.adam_beta2=0.999"),
        ("sft.keep_best=validation/loss", "sft.keep_best=validation/loss, but it must be null or -validation/loss (a minus: the lowest is best)"),
        ("reward_model.keep_best=accuracy", "reward_model.keep_best=accuracy, but it must be null or validation/accuracy or validation/margin/mean or -validation/loss (a minus: the lowest is best)"),
        ("sft.epochs=10001", "sft.epochs=10001, but it must be at most 10000"),
        ("reward_model.epochs=1e5", "reward_model.epochs=100000, but it must be at most 10000"),
        ("tiny", "'tiny' is not an override; did you mean experiment=tiny?"),
        ("seed", "'seed' is not an override; settings are written key=value, e.g. seed=1"),
        ("sft.epochs=abc", "sft.epochs=abc, but it must be a number"),
        ("algorithm.steps=1.5", "algorithm.steps=1.5, but it must be a whole number"),
        ("algorithm.steps=true", "algorithm.steps=true, but it must be a whole number"),
        ("algorithm.steps=0", "algorithm.steps=0, but it must be at least 1"),
        ("sft.adam_beta2=2", "sft.adam_beta2=2, but it must be at most 1"),
        ("sft.learning_rate=0", "sft.learning_rate=0, but it must be above 0"),
        ("sft.learning_rate=inf", "sft.learning_rate=inf, but it must be a finite number"),
        ("sft.schedule=cosin", "sft.schedule=cosin, but it must be constant, linear or cosine"),
        ("name=123", "name=123, but it must be text; quote it: 'name=\"123\"'"),
        ("tracking.log_models=1", "tracking.log_models=1, but it must be true or false"),
        ("model.lora.target_modules=3", "model.lora.target_modules=3, but it must be a list such as [a,b] or all-linear"),
        ("algorithm.group_size=1", "algorithm.group_size=1, but algorithm=rloo compares a completion with its siblings and needs at least 2; set algorithm.group_size=4, or algorithm=reinforce for one completion a prompt"),
        (
            "algorithm.rollout_batch_size=130",
            "algorithm.rollout_batch_size=130, but it must be a multiple of algorithm.group_size=4; "
            "set algorithm.rollout_batch_size=128",
        ),
        (
            "evaluation.prompts=2000",
            "evaluation.prompts=2000, but there are only data.synthetic.test=1024; lower the first or raise the second",
        ),
        (
            "algorithm.eval_prompts=513",
            "algorithm.eval_prompts=513, but there are only data.synthetic.validation=512; lower the first or raise the second",
        ),
        (
            "algorithm.max_new_tokens=65",
            "data.max_prompt_tokens + algorithm.max_new_tokens = 257, but model.scratch.max_positions=256; set it to 257 or more",
        ),
        ("model.scratch.heads=5", "model.scratch.heads=5, but it must divide model.scratch.hidden_size=96"),
        (
            "model.scratch.rotary_fraction=0.15",
            "model.scratch.rotary_fraction=0.15 of 24 dimensions a head is 3, but it must be an even number of at least 2 "
            "(dimensions are rotated in pairs)",
        ),
        (
            "data.format=messages",
            "data.format=messages, but model.chat_template=false; set model.chat_template=true for a model that has a template, "
            "or data.format=text",
        ),
        ("reward.terms=[f]", "reward.terms: 'f' is none of reward_model, gold, length_band, repetition, regular_expression or sentiment, and no module:function"),
        ("reward.terms=[os:f:g]", "reward.terms=os:f:g, but it must look like module:function, e.g. my_rewards:short_and_polite"),
        ("reward.terms=[]", "reward.terms=[], but it must be a list of at least one name or {function: NAME, weight: 0.5, arguments: {low: 3}}, where weight and arguments may be left out"),
        ("reward_model=none", "reward.terms names reward_model, but reward_model.enabled=false; set reward_model=default, or other rewards, e.g. reward=sentiment"),
        ("algorithm.advantage=leave_on_out", "algorithm.advantage: 'leave_on_out' is none of leave_one_out, best_of_group, group_mean, group_standardised, running_mean or gae, and no module:function; did you mean leave_one_out?"),
        ("tracking.experiment=''", "tracking.experiment is empty; give it a name, e.g. rloo"),
        ("data.path=owner/rows", "data.path=owner/rows, but data.source=synthetic reads no files; set data=tables"),
        ("model.path=./nowhere", "model.path=./nowhere: no such file or directory (relative paths start where the command is typed)"),
        ("model.gguf_file=x.gguf", "model.gguf_file=x.gguf, but nothing says where it is; set model.gguf_package or model.path"),
        ("model.gguf_package=p", "model.gguf_package=p, but model.gguf_file is null; name the GGUF file in that package"),
        (
            "data.max_total_tokens=192",
            "data.max_total_tokens=192, but it must be above data.max_prompt_tokens=192: it counts the prompt too",
        ),
        (
            "data.test_fraction=0.9",
            "data.validation_fraction + data.test_fraction = 1, but it must be below 1: nothing is left to train on",
        ),
        ("name=${nokey}", "name: Interpolation key 'nokey' not found"),
    ],
)  # fmt: skip
def test_one_mistake_one_sentence(override, sentence):
    assert problem(override) == sentence


@pytest.mark.parametrize("setting", ["seed", "sft.seed", "sft.epochs", "name", "paths.root", "model.scratch.layers"])
def test_null_is_advised_only_where_it_is_taken(setting):
    assert "null" not in problem(f"{setting}=")


def test_one_mistake_in_a_setting_that_others_repeat_is_told_once():
    assert problems("seed=abc", "sft.seed=-1") == (
        "seed=abc, but it must be a whole number",
        "sft.seed=-1, but it must be at least 0",
    )


def test_the_best_of_a_single_measurement_is_no_choice():
    sentence = "sft.keep_best=-validation/loss, but sft.eval_every=0 measures the last update alone; set it above 0"
    assert problems("sft.keep_best=-validation/loss", "sft.eval_every=0") == (sentence,)
    load_settings(["sft.keep_best=-validation/loss", "reward_model.keep_best=validation/accuracy"])


@pytest.mark.parametrize(("cpus", "most"), [(1, 8), (2, 8), (16, 64), (1000, 1024), (None, 8)])
def test_threads_fit_the_machine(cpus, most, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cpus)
    assert load_settings([f"compute.threads={most}"]).compute.threads == most
    assert problem(f"compute.threads={most + 1}").startswith(
        f"compute.threads={most + 1}, but it must be at most {most} on this machine"
    )


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_flex_attention_trains_on_gpus_alone(device, monkeypatch):
    monkeypatch.setattr("pipelines.config_rules.resolved_device", lambda wanted: "cpu" if wanted == "auto" else wanted)
    sentence = problem("compute.attention=flex_attention", f"compute.device={device}")
    assert sentence.startswith("compute.attention=flex_attention, but PyTorch has no gradients of it on a CPU")
    for fine in (["compute.device=cuda", "compute.attention=flex_attention"], ["compute.attention=eager"]):
        assert load_settings(fine).compute.attention == fine[-1].partition("=")[2]


def test_adapters_need_layers():
    sentence = problem("model.lora.rank=4", "model.lora.target_modules=[]")
    assert sentence.startswith("model.lora.target_modules=[], but model.lora.rank=4 needs layers to adapt")
    assert load_settings(["model.lora.rank=0", "model.lora.target_modules=[]"]).model.lora.rank == 0


@pytest.mark.parametrize(
    ("split", "asks"), [("validation", "algorithm.eval_prompts=1"), ("test", "evaluation.prompts=1")]
)
def test_held_out_rows_have_a_spread(split, asks):
    sentence = problem(f"data.synthetic.{split}=1", asks)
    assert sentence == f"data.synthetic.{split}=1, but it must be at least 2: one row has no spread to estimate"
    assert load_settings([f"data.synthetic.{split}=2", asks])
    assert load_settings([f"data.synthetic.{split}=1", asks, "data=hh", "data.path=a/b", "model.path=c/d"])


def test_an_experiment_with_a_pretrained_model_needs_one():
    assert problem("experiment=hh_stories", "data.path=a/b") == "model=pretrained needs model.path=DIRECTORY_OR_HUB_ID"


@pytest.mark.parametrize("key", ["model.path", "reward_model.path"])
def test_a_directory_without_a_model_is_refused(key, tmp_path):
    sentence = problem(f"{key}={tmp_path}")
    assert sentence.startswith(f"{key}={tmp_path} has no config.json, but it must be a directory that")
    (tmp_path / "weights.safetensors").touch()
    assert problem(f"{key}={tmp_path}/weights.safetensors").startswith(
        f"{key}={tmp_path}/weights.safetensors is a file"
    )
    assert load_settings([f"{key}={model_in(tmp_path)}"])


def test_a_directory_with_a_gguf_file_needs_no_config(tmp_path):
    assert load_settings([f"model.path={tmp_path}", "model.gguf_file=m.gguf"]).model.gguf_file == "m.gguf"


@pytest.fixture
def rewards(tmp_path, monkeypatch):
    """Write a module of rewards, and say what is wrong with one of its functions."""
    monkeypatch.syspath_prepend(tmp_path)

    def check(source: str, name: str = "score", file: str = "my_rewards.py") -> tuple[str, ...]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(source)
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        try:
            load_settings([f"reward.terms=['{module}:{name}']"])
        except ConfigError as error:
            return error.problems
        return ()

    return check


def test_a_reward_file_with_a_syntax_error_is_told_with_its_line(rewards, tmp_path):
    start = "reward.terms=my_rewards:score cannot be read: "
    (sentence,) = rewards("import os\ndef score(:\n")
    assert sentence.startswith(f"{start}{tmp_path}/my_rewards.py, line 2: ")
    (sentence,) = rewards("def score():\0")
    assert sentence.startswith(f"{start}{tmp_path}/my_rewards.py")
    rewards("x = (\n", file="mine/broken.py")
    (sentence,) = rewards("from mine import broken\ndef score(): ...", file="mine/rewards.py")
    assert f"{tmp_path}/mine/broken.py, line 1: " in sentence


def test_a_function_that_the_module_lacks_is_told_with_the_nearest(rewards, tmp_path):
    (sentence,) = rewards("def scores(prompts, completions): ...\ndef other():\n    def score(): ...\n")
    assert sentence == (
        f"reward.terms=my_rewards:score, but {tmp_path}/my_rewards.py defines no score at its top level; "
        f"did you mean scores?"
    )
    assert "my_rewards" not in sys.modules


@pytest.mark.parametrize(
    "source",
    [
        "def score(): ...",
        "async def score(): ...",
        "class score: ...",
        "import score",
        "import a.b as score",
        "from a import score",
        "from a import b as score",
        "score = 1",
        "score: int = 1",
        "a, (score, b) = 1, (2, 3)",
        "try:\n    import x\nexcept ImportError:\n    def score(): ...",
        "if True:\n    def score(): ...",
        "def make():\n    global score\n    score = 1",
        "from somewhere import *",
        "globals()['score'] = 1",
        "def __getattr__(name): ...",
    ],
)
def test_what_may_define_the_function_is_accepted(rewards, source):
    assert rewards(source) == ()


def test_a_package_that_imports_may_hand_on_anything(rewards):
    assert rewards("from mine import parts", file="mine/__init__.py") == ()
    assert len(rewards("x = 1", file="other/__init__.py")) == 1


@pytest.mark.parametrize("source", ["hh", "tldr", "tables"])
def test_real_data_needs_a_path_and_a_model(source):
    path, model = sorted(problems(f"data={source}"))
    assert model.startswith(
        f"model.path=null, but a model from nothing only learns data.source=synthetic, not {source}"
    )
    assert path.startswith(f"data.path=null, but data.source={source} needs a file, a directory or a hub id")


def test_data_that_cannot_be_read_is_told_before_any_work(tmp_path):
    model = "model.path=owner/model"
    assert problem("data=hh", "data.path=./nowhere", model).startswith("data.path=./nowhere does not exist")
    assert "holds nothing readable" in problem("data=hh", f"data.path={tmp_path}", model)


def test_the_gold_judge_needs_the_synthetic_task():
    sentence = problem("data=hh", "data.path=a/b", "model.path=c/d", "evaluation.judge=gold")
    assert sentence.startswith("evaluation.judge=gold, but only data.source=synthetic has a gold reward, not hh")


@pytest.mark.parametrize(
    "override",
    [
        "name=${oc.env:HOME}",
        "name='${oc.env:HOME}'",
        "name=${ oc.env:HOME}",
        "name=${${paths.root}:HOME}",
        "name=x${hydra:runtime.cwd}",
        "paths.root=${oc.decode:x}",
    ],
)
def test_resolvers_are_refused(override):
    assert "resolvers such as ${oc.env:...} and ${hydra:...} are refused" in problem(override)


@pytest.mark.parametrize("override", ["+model._target_=os.system", "data.synthetic={_target_: os.system}"])
def test_targets_are_refused(override):
    assert "_target_ is refused" in problem(override)


@pytest.mark.parametrize("override", ["seed=1,2", "seed=range(1,3)", "algorithm.kl_coef=choice(0.1,0.2)"])
def test_sweeps_are_refused(override):
    assert "one run takes one value" in problem(override)


def test_hydras_own_settings_are_refused():
    assert "have no effect" in problem("hydra.run.dir=x")
    assert "have no effect" in problem("hydra/launcher=basic")


def test_syntax_errors_advise_quoting():
    sentence = problem("name=Hello, world: a=b")
    assert "quote values with special characters twice: 'name=\"Hello, world: a=b\"'" in sentence
    assert load_settings(['name="Hello, world: a=b"']).name == "Hello, world: a=b"


def test_a_dash_is_no_setting():
    assert problem("--seed=1").startswith("--seed=1 is no option of this command")


def test_all_problems_come_at_once():
    found = problems(
        "dat=hh", "data=hx", "sft.epochs=abc", "algorithm.group_size=1", "model.scratch.heads=5", "rloo_k=2"
    )
    assert len(found) == 6


def test_rules_do_not_read_what_is_wrong_already():
    assert problems("algorithm.group_size=abc") == ("algorithm.group_size=abc, but it must be a whole number",)


def test_old_names_lead_to_settings_that_exist():
    for name in OLD_NAMES.values():
        if " " not in name and "=" not in name:
            assert any(key == name or key.endswith(f".{name}") for key in known_keys()), name


def test_settings_can_be_loaded_from_several_threads():
    failures: list[BaseException] = []

    def load() -> None:
        try:
            load_settings(["experiment=tiny"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_composing_imports_nothing_heavy(tmp_path):
    code = (
        "import sys; from pipelines.config import load_settings; load_settings(['experiment=tiny']);"
        "print([m for m in ('torch', 'transformers', 'prefect', 'mlflow') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []


def test_rows_longer_than_a_local_model_reads_are_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"n_positions": 64}')
    (tmp_path / "tokenizer.json").write_text("{}")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"chosen": "a", "rejected": "b"}\n')
    overrides = ["data=hh", f"data.path={rows}", "model=pretrained", f"model.path={tmp_path}"]
    lengths = ["data.max_prompt_tokens=40", "data.max_total_tokens=60"]
    with pytest.raises(ConfigError) as error:
        load_settings([*overrides, *lengths, "algorithm.max_new_tokens=30"])
    (problem,) = error.value.problems
    assert problem.startswith("data.max_prompt_tokens + algorithm.max_new_tokens = 70, but n_positions in ")
    assert problem.endswith("=64; lower the former")
    load_settings([*overrides, *lengths, "algorithm.max_new_tokens=24"])
