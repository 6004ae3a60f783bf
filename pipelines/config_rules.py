"""Settings that do not go together, each combination as one sentence that names the key and the way out."""

import json
from pathlib import Path

from pipelines.fingerprint import resolved_device
from rloo_core.algorithms.contradictions import SAMPLED_EXACTLY
from rloo_core.rules import Values, rule


def _from_scratch(v: Values) -> bool:
    return v["model.path"] is None and v["model.gguf_package"] is None


@rule("data.source", "model.path", "model.gguf_package")
def _a_model_for_real_text(v: Values) -> str | None:
    if v["data.source"] == "synthetic" or not _from_scratch(v):
        return None
    return (
        f"model.path=null, but a model from nothing only learns data.source=synthetic, not {v['data.source']}; "
        f"set model=pretrained model.path=DIRECTORY_OR_HUB_ID"
    )


@rule("model.path", "model.gguf_package", "model.gguf_file")
def _one_model(v: Values) -> str | None:
    package, file = v["model.gguf_package"], v["model.gguf_file"]
    if package is not None and v["model.path"] is not None:
        return f"model.path={v['model.path']} and model.gguf_package={package} name two models; set one of them to null"
    if package is not None and file is None:
        return f"model.gguf_package={package}, but model.gguf_file is null; name the GGUF file in that package"
    if file is not None and _from_scratch(v):
        return f"model.gguf_file={file}, but nothing says where it is; set model.gguf_package or model.path"
    return None


@rule("data.format", "model.chat_template")
def _template_for_messages(v: Values) -> str | None:
    if v["data.format"] != "messages" or v["model.chat_template"]:
        return None
    return (
        "data.format=messages, but model.chat_template=false; set model.chat_template=true for a model that has a "
        "template, or data.format=text"
    )


@rule("algorithm.sampler_cap", "compute.sampling_precision")
def _something_to_correct(v: Values) -> str | None:
    if v["algorithm.sampler_cap"] is None or v["compute.sampling_precision"] != "float32":
        return None
    return SAMPLED_EXACTLY.format(v["algorithm.sampler_cap"])


@rule("compute.attention", "compute.device")
def _attention_with_gradients(v: Values) -> str | None:
    if v["compute.attention"] != "flex_attention" or resolved_device(v["compute.device"]) != "cpu":
        return None
    return (
        "compute.attention=flex_attention, but PyTorch has no gradients of it on a CPU, where this would train; set "
        "compute.attention=auto, or compute.device=cuda on a machine with a GPU"
    )


@rule("evaluation.judge", "data.source")
def _gold_is_known(v: Values) -> str | None:
    if v["evaluation.judge"] != "gold" or v["data.source"] == "synthetic":
        return None
    return (
        f"evaluation.judge=gold, but only data.source=synthetic has a gold reward, not {v['data.source']}; "
        f"set evaluation.judge=auto"
    )


@rule("data.source", "data.synthetic.validation", "algorithm.eval_prompts")
def _enough_validation(v: Values) -> str | None:
    return _enough(v, "algorithm.eval_prompts", "data.synthetic.validation")


@rule("data.source", "data.synthetic.test", "evaluation.prompts")
def _enough_test(v: Values) -> str | None:
    return _enough(v, "evaluation.prompts", "data.synthetic.test")


def _enough(v: Values, asked: str, given: str) -> str | None:
    if v["data.source"] != "synthetic" or v[asked] is None or v[asked] <= v[given]:
        return None
    return f"{asked}={v[asked]}, but there are only {given}={v[given]}; lower the first or raise the second"


@rule("data.max_prompt_tokens", "data.max_total_tokens")
def _room_for_a_completion(v: Values) -> str | None:
    prompt, total = v["data.max_prompt_tokens"], v["data.max_total_tokens"]
    if prompt < total:
        return None
    return (
        f"data.max_total_tokens={total}, but it must be above data.max_prompt_tokens={prompt}: it counts the prompt too"
    )


@rule("data.validation_fraction", "data.test_fraction")
def _rows_left_to_train_on(v: Values) -> str | None:
    held_out = v["data.validation_fraction"] + v["data.test_fraction"]
    if held_out < 1:
        return None
    return (
        f"data.validation_fraction + data.test_fraction = {held_out:g}, but it must be below 1: "
        f"nothing is left to train on"
    )


@rule(
    "data.source",
    "model.path",
    "model.gguf_package",
    "model.scratch.max_positions",
    "data.max_prompt_tokens",
    "data.max_total_tokens",
    "algorithm.max_new_tokens",
    "evaluation.max_new_tokens",
)
def _within_the_context(v: Values) -> str | None:
    where, positions = _context(v)
    if positions is None:
        return None
    prompt = v["data.max_prompt_tokens"]
    lengths = {"data.max_total_tokens": v["data.max_total_tokens"]}
    for key in ("algorithm.max_new_tokens", "evaluation.max_new_tokens"):
        lengths[f"data.max_prompt_tokens + {key}"] = prompt + v[key]
    name, longest = max(lengths.items(), key=lambda item: item[1])
    if longest <= positions:
        return None
    remedy = f"set it to {longest} or more" if _from_scratch(v) else "lower the former"
    return f"{name} = {longest}, but {where}={positions}; {remedy}"


def _context(v: Values) -> tuple[str, int | None]:
    """Tokens the model can read and where that is said; None where it is not known before loading."""
    if _from_scratch(v):
        known = v["data.source"] == "synthetic"  # no other data can be used with a new model; another rule says so
        return "model.scratch.max_positions", v["model.scratch.max_positions"] if known else None
    file = Path(v["model.path"] or "") / "config.json"
    if v["model.path"] is None or not file.is_file():
        return "", None
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return "", None  # the loader will say what is wrong with it
    names = [name for name in ("max_position_embeddings", "n_positions") if isinstance(config.get(name), int)]
    return (f"{names[0]} in {file}", config[names[0]]) if names else ("", None)


@rule("model.scratch.hidden_size", "model.scratch.heads", "model.scratch.rotary_fraction")
def _heads_share_the_width(v: Values) -> str | None:
    width, heads = v["model.scratch.hidden_size"], v["model.scratch.heads"]
    if width % heads:
        return f"model.scratch.heads={heads}, but it must divide model.scratch.hidden_size={width}"
    fraction = v["model.scratch.rotary_fraction"]
    rotary = int(width // heads * fraction)
    if rotary < 2 or rotary % 2:
        return (
            f"model.scratch.rotary_fraction={fraction} of {width // heads} dimensions a head is "
            f"{rotary}, but it must be an even number of at least 2 (dimensions are rotated in pairs)"
        )
    return None


@rule("tracking.uri", "services.prefect_database")
def _no_passwords(v: Values) -> str | None:
    """They would be logged, and shown in Prefect and MLflow."""
    for key in ("tracking.uri", "services.prefect_database"):
        user = (v[key] or "").partition("://")[2].rpartition("@")[0]
        if ":" in user:
            return f"{key} holds a password, which would be logged; put it into PGPASSFILE or PGPASSWORD instead"
    return None


@rule("tracking.artifacts")
def _artifacts_are_one_place(v: Values) -> str | None:
    artifacts = v["tracking.artifacts"]
    if artifacts is None or "://" in artifacts or Path(artifacts).is_absolute():
        return None
    return f"tracking.artifacts={artifacts} must be an absolute directory or a URI such as s3://bucket/path"


@rule("tracking.experiment")
def _experiment_has_a_name(v: Values) -> str | None:
    return None if v["tracking.experiment"].strip() else "tracking.experiment is empty; give it a name, e.g. rloo"


@rule("name")
def _run_has_a_name(v: Values) -> str | None:
    return None if v["name"].strip() else "name is empty; give the run a name, e.g. name=default"
