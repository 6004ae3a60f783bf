"""The alias `champion`, model cards and lineage: rules by hand, and a whole run with stages that do next to nothing."""

import fcntl
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient

from pipelines.config_errors import ConfigError
from pipelines.plan import Selection
from pipelines.store import Manifest
from pipelines.tracking import run_copy
from pipelines.tracking.champion import Score, basis_of, crown, decide
from pipelines.tracking.lineage import find_version, lineage, mermaid
from pipelines.tracking.models import model_of
from rloo_core.settings import ExperimentSettings
from tests.pipelines import fake_stages
from tests.pipelines.test_runner import run, runs, settings  # noqa: F401 (a fixture)

SCORE = Score("b", 0.60, 0.57, 0.63)
RATE = "evaluation/policy/sampled/win_rate"
DIFFERENCE = "evaluation/difference/sampled/win_rate"


@pytest.mark.parametrize(
    ("champion", "there_is_one", "low", "becomes"),
    [
        (None, False, 0.01, True),
        (None, False, -0.01, False),  # not surely better than its own SFT model
        (None, True, 0.5, False),  # the champion was measured otherwise
        (Score("b", 0.569, 0.5, 0.6), True, -0.5, True),
        (Score("b", 0.57, 0.5, 0.6), True, 0.5, False),  # within the interval
        (Score("b", 0.7, 0.6, 0.8), True, 0.5, False),
    ],
)
def test_the_rule(champion: Score | None, there_is_one: bool, low: float, becomes: bool) -> None:
    assert decide(SCORE, {f"{DIFFERENCE}_low": low}, champion, there_is_one)[0] is becomes


def evaluation(judge: str = "auto", reward_model: str = "r", **others: Any) -> Manifest:
    parts = {f"settings/evaluation.{name}": value for name, value in {"judge": judge, **others}.items()}
    return Manifest("evaluation", "f", "d", parts, {"reward_model": {"digest": reward_model}}, {}, {}, "", 0.0)


def test_what_is_compared_was_measured_alike(tmp_path: Path) -> None:
    def write(name: str, sha256: str, source: str = "synthetic") -> Path:
        (tmp_path / name).mkdir()
        about = {"source": source, "tables": {"prompts-test": {"sha256": sha256}}}
        (tmp_path / name / "dataset.json").write_text(json.dumps(about))
        return tmp_path / name

    first, other, real = write("first", "1"), write("other", "2"), write("real", "1", "hh")
    base = basis_of(evaluation(prompts=8, seed=0, samples=4), first)
    assert basis_of(evaluation(prompts=8, seed=1, samples=9), first) == base  # another seed, another table
    assert basis_of(evaluation(prompts=8, seed=0, samples=4, reward_model="q"), first) == base  # gold is the judge
    assert basis_of(evaluation(prompts=9, seed=0, samples=4), first) != base
    assert basis_of(evaluation(prompts=8, seed=0, samples=4), other) != base
    by_reward = basis_of(evaluation("auto", "r"), real)
    assert by_reward != basis_of(evaluation("auto", "q"), real)  # the reward model is the judge, and another one


def crowned(settings: ExperimentSettings) -> str | None:  # noqa: F811
    client = client_of(settings)
    aliases = client.get_registered_model("trial-policy").aliases
    return str(aliases["champion"]) if "champion" in aliases else None


def client_of(settings: ExperimentSettings) -> MlflowClient:  # noqa: F811
    uri = f"sqlite:///{settings.paths.root}/mlflow.db"
    return MlflowClient(uri, uri)


def rates(policy: float) -> dict[str, float]:
    return {RATE: policy, f"{RATE}_low": policy - 0.03, f"{RATE}_high": policy + 0.03, f"{DIFFERENCE}_low": 0.1}


def test_a_full_run_takes_the_alias_and_only_a_better_one_takes_it_over(
    settings: ExperimentSettings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = settings.tracking.model_copy(update={"champion": True})

    def another(policy: float, kl_coef: float, selection: Selection | None = None, champion: bool = True) -> str:
        monkeypatch.setattr(
            fake_stages, "_summary", lambda name: rates(policy) if name == "evaluation" else {"loss": 1.0}
        )
        algorithm = settings.algorithm.model_copy(update={"kl_coef": kl_coef})
        tracking = full if champion else settings.tracking
        code, text = run(settings, selection, algorithm=algorithm, tracking=tracking)
        assert code == 0, text
        return text

    another(0.9, 0.5, champion=False)  # a trial
    assert crowned(settings) is None
    text = another(0.5, 0.1)
    assert crowned(settings) == "2"
    assert "champion   trial-policy version 2: win rate 50.0 % [47.0, 53.0], above its own SFT model's" in text
    assert "stays version 2: win rate 52.0 % [49.0, 55.0], the champion's 50.0 %" in another(0.52, 0.2)
    another(0.9, 0.3, Selection(from_stage="sft"))  # not a full run
    assert crowned(settings) == "2"
    another(0.6, 0.4)
    assert crowned(settings) == "5"
    assert "as before" in another(0.6, 0.4)
    parents, _ = runs(settings)
    assert parents[0].data.tags["champion"] == "trial-policy version 5, as before"
    card = client_of(settings).get_model_version("trial-policy", "5").description
    assert card.count("## Evaluation") == 1
    assert "| evaluation/policy/sampled/win_rate | 0.6 |" in card


def test_the_champion_is_chosen_by_one_run_at_a_time(
    settings: ExperimentSettings,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody_else(*arguments: Any) -> str:
        with (
            (Path(settings.paths.root) / "locks" / "champion").open() as lock,
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return crown(*arguments)

    monkeypatch.setattr(run_copy, "crown", nobody_else)
    full = settings.tracking.model_copy(update={"champion": True})
    monkeypatch.setattr(fake_stages, "_summary", lambda name: rates(0.5) if name == "evaluation" else {"loss": 1.0})
    code, text = run(settings, tracking=full)
    assert code == 0
    assert "champion   trial-policy version 1" in text


def test_a_card_tells_recipe_data_metrics_and_how_to_load(settings: ExperimentSettings) -> None:  # noqa: F811
    assert run(settings)[0] == 0
    client = client_of(settings)
    version = client.get_model_version("trial-policy", "1")
    model = model_of(client, version.run_id)
    assert model is not None
    data = json.loads(next((Path(settings.paths.root) / "store" / "data").glob("*/dataset.json")).read_text())
    for text in (
        "| algorithm.kl_coef | 0.1 |",
        f"`prompts-train`: 3 rows, SHA-256 `{data['tables']['prompts-train']['sha256']}`",
        "reward_model: `trial-reward-model/1`",
        "| policy/loss | 0.5 |",
        f'mlflow.transformers.load_model("models:/{model.model_id}")',
        "transformers.AutoModelForCausalLM.from_pretrained",
    ):
        assert text in version.description, text
    folder = Path(client.get_logged_model(model.model_id).artifact_location.removeprefix("file://"))
    assert (folder / "README.md").read_text() == version.description
    assert "AutoModelForSequenceClassification" in client.get_model_version("trial-reward-model", "1").description


def test_lineage_goes_back_to_the_rows(settings: ExperimentSettings) -> None:  # noqa: F811
    assert run(settings)[0] == 0
    client = client_of(settings)
    client.set_registered_model_alias("trial-policy", "best", "1")
    tree = lineage(client, "models:/trial-policy@best")
    assert tree.title == "trial-policy version 1 (best)"
    assert [table.name for table in tree.tables] == ["prompts-train", "prompts-validation"]
    assert all(len(table.sha256) == 64 and table.rows == 3 for table in tree.tables)
    assert [node.title for node in tree.made_from] == ["trial-reward-model version 1", "trial-sft version 1"]
    reward_model, sft = tree.made_from
    assert [node.title for node in reward_model.made_from] == ["trial-sft version 1"]
    assert [table.name for table in sft.tables] == ["demonstrations-train", "demonstrations-validation"]
    assert json.loads(json.dumps(tree.as_dict()))["made_from"][1]["name"] == "trial-sft"
    chart = mermaid(tree).splitlines()
    assert chart[0] == "flowchart LR"
    assert len(chart) == len(set(chart))
    assert sum("trial-sft version 1" in line for line in chart) == 1
    assert sum("-->" in line for line in chart) == 2 + 2 + 2 + 3  # tables of three models; sft twice, reward model once
    for name, sentence in (
        ("trial-polic", "did you mean trial-policy"),
        ("trial-policy/7", "not found"),
        ("trial-policy@nobody", "nobody"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            find_version(client, name)


def test_a_parent_that_is_gone_is_said() -> None:
    from mlflow.exceptions import MlflowException

    from pipelines.tracking.lineage import _parent

    def gone(*_: object) -> None:
        raise MlflowException("no such version")

    client: Any = SimpleNamespace(get_model_version=gone, get_logged_model=gone)
    assert _parent(client, "sft", "trial-sft/1").title == "trial-sft/1 (gone from MLflow)"
