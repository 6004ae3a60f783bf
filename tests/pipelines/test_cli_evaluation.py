"""`rloo judge` and `rloo evaluate` on files and models that came from anywhere."""

import csv
import json

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from tests.rloo_core.evaluation.judges.chat_server import ChatServer
from tests.rloo_core.stages.small import words
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

ROWS = [("p one", "short", "a longer one"), ("p two", "same size", "same_size"), ("p three", "the longer", "tiny")]


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path):
    a = [{"prompt": p, "completion": one, "reference": "the longer one", "vote": v}
         for (p, one, _), v in zip(ROWS, (2, 0, "a"), strict=True)]  # fmt: skip
    b = [{"instruction": p, "response": two} for p, _, two in [*ROWS[::-1], ("p four", "", "alone")]]
    return write(tmp_path / "a.jsonl", a), write(tmp_path / "b.jsonl", b)


def judged(files, tmp_path, *arguments):
    result = invoke("judge", *files, *arguments, "--json", f"paths.root={tmp_path / 'runs'}")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_prompts_meet_and_wins_are_counted(files, tmp_path):
    found = judged(files, tmp_path, "--judge", "length", "--judge", "brevity", "--label", "vote")
    assert (found["pairs"], found["unmatched"]) == (3, [0, 1])
    results = found["results"]
    assert results["length/win_rate"] == results["brevity/win_rate"] == 0.5  # one won, one tied, one lost
    assert results["kappa/length/brevity"] == pytest.approx(0.0)  # agree on the tie alone, as often as by chance
    assert (results["agreement/length/vote"], results["length/accuracy"], results["brevity/accuracy"]) == (
        1.0,
        1.0,
        0.0,
    )


def test_everything_is_kept_and_shown(files, tmp_path):
    out = tmp_path / "out"
    result = invoke("judge", *files, "--judge", "rouge", "--out", out, f"paths.root={tmp_path / 'runs'}")
    assert result.exit_code == 0, result.output
    assert "A wins, %" in result.stdout
    rows = [json.loads(line) for line in (out / "judgements.jsonl").read_text().splitlines()]
    assert [(row["judge"], row["prompt"], row["a_first"], row["b_first"]) for row in rows] == [
        ("rouge", 0, 0.0, 0.0), ("rouge", 1, 0.5, 0.5), ("rouge", 2, 1.0, 1.0)
    ]  # fmt: skip
    assert "results" in json.loads((out / "results.json").read_text())
    html = (out / "report.html").read_text()
    assert "Win rates of A" in html
    assert "p three" in html


def test_a_language_model_judges_and_a_dry_run_asks_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-this-test")
    with ChatServer() as server:
        settings = [f"evaluation.llm.base_url={server.url}", "evaluation.llm.price_prompt=10.0"]
        dry = invoke("judge", *files, "--judge", "llm", "--dry-run", *settings, f"paths.root={tmp_path / 'runs'}")
        assert "llm: 6 questions to ask (0 known)" in dry.output
        assert server.requests == []
        results = judged(files, tmp_path, "--judge", "llm", *settings)["results"]
        assert (results["llm/win_rate"], results["llm/answers"]) == (0.5, 6.0)
        assert results["llm/cost"] == pytest.approx(6 * 100 * 10 / 1e6)
        judged(files, tmp_path, "--judge", "llm", *settings)
        assert len(server.requests) == 6
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"sk-of-this-test" in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--judge", "nobody"], "there is no judge 'nobody'"),
        (["--completion", "nothing"], "has no column nothing for the completion"),
        (["--label", "prompt"], "prompt holds 'p one', but a vote is 1 or a"),
        (["evaluation.llm.model=3"], "evaluation.llm.model"),
        (["--judge", "gold"], "knows the embedded task alone"),
    ],
)
def test_what_cannot_be_judged_is_told_in_one_line(files, tmp_path, arguments, message):
    result = invoke("judge", *files, *arguments, f"paths.root={tmp_path / 'runs'}")
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output


def test_files_without_a_common_prompt_are_refused(files, tmp_path):
    other = write(tmp_path / "c.jsonl", [{"prompt": "else", "completion": "x"}])
    result = invoke("judge", files[0], other, f"paths.root={tmp_path / 'runs'}")
    assert result.exit_code == 1
    assert "no prompt of the one side (3 rows) is a prompt of the other (1 rows)" in result.output


# Models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        tiny_neox(seed=seed).save_pretrained(place / str(seed))
        tiny_tokenizer().save_pretrained(place / str(seed))
    write(place / "prompts.jsonl", [{"prompt": words(4 + i, i), "reference": words(3, i, "r")} for i in range(6)])
    return place


def evaluated(models, tmp_path, *arguments):
    sizes = ["evaluation.max_new_tokens=6", "evaluation.temperature=1.0", "evaluation.completions=2"]
    result = invoke(
        "evaluate", models / "0", models / "1", "--prompts", models / "prompts.jsonl", *arguments, "--json", *sizes,
        f"paths.root={tmp_path / 'runs'}",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_models_are_compared_with_references_and_the_first(models, tmp_path):
    found = evaluated(models, tmp_path, "--judge", "length", "--out", tmp_path / "out", "--decoding", "sampled")
    assert set(found["duels"]) == {"1 against the references", "2 against the references", "2 against 1"}
    written = [tmp_path / "out" / f"completions-{i}.jsonl" for i in (1, 2)]
    rows = [[json.loads(line) for line in file.read_text().splitlines()] for file in written]
    assert [len(each) for each in rows] == [12, 12]
    lengths = [[len(row["completion"]) for row in each] for each in rows]
    wins = [0.5 + 0.5 * ((b > a) - (b < a)) for a, b in zip(*lengths, strict=True)]
    assert found["duels"]["2 against 1"]["length/win_rate"] == pytest.approx(sum(wins) / 12)
    assert "kl" not in found["models"]["1"]
    assert found["models"]["2"]["kl_k3"] > 0
    again = invoke("judge", *written[::-1], "--json", f"paths.root={tmp_path / 'runs'}")
    assert json.loads(again.stdout)["results"]["length/win_rate"] == pytest.approx(sum(wins) / 12)


def test_models_that_cannot_share_prompts_are_named(models, tmp_path, monkeypatch):
    monkeypatch.setattr("rloo_core.layout._why_not_shared", lambda decoder: "it is old")
    result = invoke("evaluate", models / "0", models / "1", "--prompts", models / "prompts.jsonl",
                    "evaluation.max_new_tokens=6", f"paths.root={tmp_path / 'runs'}")  # fmt: skip
    output = "".join(result.output.split())
    for name in ("0", "1"):
        assert f"{models / name}:completionsdonotsharetheirprompt'scomputation:itisold" in output


def test_a_model_against_itself_is_even(models, tmp_path):
    result = invoke("evaluate", models / "0", models / "0", "--prompts", models / "prompts.jsonl", "--json",
                    "evaluation.max_new_tokens=6", f"paths.root={tmp_path / 'runs'}")  # fmt: skip
    found = json.loads(result.stdout)
    assert found["duels"]["2 against 1"]["rouge/win_rate"] == 0.5
    assert found["models"]["2"]["kl"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere is neither a Hugging Face directory"),
        (["--no-such", "nowhere"], "--no-such is no option of this command"),
        (["rloo-policy/1"], "there is no model registry in"),
        (["--decoding", "beam", "nowhere"], "--decoding beam: greedy or sampled"),
    ],
)
def test_models_that_are_not_there_are_told(models, tmp_path, arguments, message):
    prompts = ["--prompts", models / "prompts.jsonl"]
    result = invoke("evaluate", *arguments, *prompts, f"paths.root={tmp_path / 'runs'}")
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())


# Real completions


def test_llmbar_and_tldr(shared_data, tmp_path):
    """LLMBar's Natural set by length: right in 56 of 100, one tie. TL;DR: 93 of 100 summaries by PPO are longer."""
    rows = json.loads((shared_data / "llmbar" / "Natural.json").read_text())
    outputs = {
        k: [{"prompt": r["input"], "completion": r[f"output_{k}"], "label": r["label"]} for r in rows] for k in "12"
    }
    sides = [write(tmp_path / f"{k}.jsonl", each) for k, each in outputs.items()]
    found = judged(sides, tmp_path, "--label", "label")["results"]
    assert found["length/accuracy"] == pytest.approx(0.565)
    with (shared_data / "tldr" / "instructgpt_tldr_samples.csv").open(newline="") as file:
        samples = list(csv.DictReader(file))
    models = [
        write(tmp_path / f"{model}.jsonl", [row for row in samples if row["model_type"] == model])
        for model in ("ppo-ptx-175b", "sft-175b")
    ]
    out = tmp_path / "tldr"
    found = judged(models, tmp_path, "--judge", "rouge", "--judge", "length", "--out", out)
    assert (found["pairs"], found["prompts"]) == (100, 100)
    assert found["results"]["length/win_rate"] == pytest.approx(0.93)
    assert found["results"]["length/length_controlled_win_rate"] < 0.8
    assert found["results"]["rouge/win_rate"] < 0.5
    assert (out / "report.html").stat().st_size > 10_000
