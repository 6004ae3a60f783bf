"""What the README shows runs as it stands there."""

import re
import subprocess
import sys

from tests.conftest import REPOSITORY, rloo
from tests.rloo_core.tiny import tiny_neox, tiny_tokenizer

README = (REPOSITORY / "README.md").read_text()
BLOCKED = """
import sys
sys.modules.update(dict.fromkeys(("prefect", "mlflow", "hydra", "omegaconf", "pipelines")))  # None: importing it fails
"""


def block(language, containing):
    """The one code block that contains a text."""
    found = [code for code in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if containing in code]
    assert len(found) == 1, found
    return found[0]


def test_the_library_trains_without_orchestrator_tracker_and_config_system(tmp_path):
    tiny_neox().save_pretrained(tmp_path / "my-model")
    tiny_tokenizer().save_pretrained(tmp_path / "my-model")
    code = block("python", "train_policy(")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    first, last, kl = map(float, done.stdout.split()[-3:])
    assert last > first
    assert kl > 0
    assert (tmp_path / "shorter" / "model.safetensors").exists()


def test_an_algorithm_from_outside(tmp_path):
    """The README's function as an installed package that registers it: a directory on the path with its metadata."""
    code, toml = block("python", "def median_of_siblings"), block("toml", "rloo.advantages")
    assert len(code.splitlines()) + len(toml.splitlines()) < 30
    site = tmp_path / "site"
    info = site / "my_methods-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_methods.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-methods\nVersion: 1.0\n")
    group, entry = re.search(r'entry-points."(.*)"\]\n(.*)', toml).groups()
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")
    fewer = ["algorithm.steps=1", "sft.epochs=0.1", "reward_model.epochs=0.1", "--until", "policy", "--no-prefect"]
    for advantage in ("median", "my_methods:median_of_siblings"):
        name = f"algorithm.advantage={advantage}"
        run = rloo(tmp_path, "run", "experiment=tiny", "algorithm.name=median", name, *fewer, path=site)
        assert run.process.returncode == 0, run.output


def test_the_median_of_siblings_is_what_it_says():
    import torch

    names = {}
    exec(block("python", "def median_of_siblings"), names)
    rewards = torch.tensor([[1.0, 5.0, 2.0, 9.0]])
    everything = torch.ones_like(rewards, dtype=torch.bool)
    # siblings of 1: 2 5 9 -> 5; of 5: 1 2 9 -> 2; of 2: 1 5 9 -> 5; of 9: 1 2 5 -> 2
    assert names["median_of_siblings"](rewards, everything).tolist() == [[-4.0, 3.0, -3.0, 7.0]]


def test_the_study_of_ones_own_is_one_that_runs(tmp_path):
    from pipelines.studies.loading import load_definition
    from pipelines.studies.points import points_of

    (tmp_path / "my_study.yaml").write_text(block("yaml", "Larger batches reach more"))
    study = load_definition(str(tmp_path / "my_study.yaml"), "laptop")
    assert len(points_of(study, str(tmp_path))) == 2 * 5
