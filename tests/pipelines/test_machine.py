"""What a deployment may name: code and files that the machine's own settings list, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from pipelines import deployed
from pipelines.config import load_settings
from pipelines.config_errors import ConfigError
from pipelines.machine import FILE, Machine, load_machine, machine_file, refuse_what_is_not_allowed
from rloo_core.settings import ExperimentSettings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def settings(root: Path, **changes: Any) -> ExperimentSettings:
    """The tiny settings with some of them changed, whatever other rules say."""
    made = load_settings(["experiment=tiny", f"paths.root={root}"])
    for key, value in changes.items():
        section, _, name = key.partition("__")
        made = made.model_copy(update={section: getattr(made, section).model_copy(update={name: value})})
    return made


def test_what_the_configuration_brings_is_allowed(root: Path) -> None:
    refuse_what_is_not_allowed(settings(root), Machine())


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("reward__terms", ("my_rewards:short",), Machine(functions=("my_rewards:*",))),
        ("algorithm__advantage", "team.maths:mine", Machine(functions=("team.maths:mine",))),
        ("evaluation__judges", ("function:my_rewards:short",), Machine(functions=("my_rewards:short",))),
        ("evaluation__judges", ("length", "reward:/models/rm"), Machine(paths=(Path("/models"),))),
        ("data__path", "/etc/passwd", Machine(paths=(Path("/etc"),))),
        ("data__path", "own/hub,/etc/passwd", Machine(paths=(Path("/etc"),))),
        ("model__path", "../elsewhere", Machine(paths=(Path("/"),))),
    ],
)
def test_code_and_files_need_to_be_listed(root: Path, key: str, value: Any, allowed: Machine) -> None:
    asked = settings(root, **{key: value})
    with pytest.raises(ConfigError, match=r"machine.toml lists"):
        refuse_what_is_not_allowed(asked, Machine(source=Path("machine.toml")))
    refuse_what_is_not_allowed(asked, allowed)


def test_below_the_run_root_is_allowed_and_a_link_out_of_it_is_not(root: Path, tmp_path: Path) -> None:
    (root / "inside").mkdir()
    refuse_what_is_not_allowed(settings(root, data__path=f"{root}/inside"), Machine())
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    for path in (f"{root}/link", f"{root}/inside/../../outside"):
        with pytest.raises(ConfigError, match="reads only files below its run root"):
            refuse_what_is_not_allowed(settings(root, data__path=path), Machine())


def test_keys_go_to_listed_judges_only(root: Path) -> None:
    made = settings(root)
    for update, machine in (
        ({"base_url": "http://evil.example/v1"}, Machine(judges=("http://evil.example/v1",))),
        ({"api_key_env": "AWS_SECRET_ACCESS_KEY"}, Machine(keys=("AWS_SECRET_ACCESS_KEY",))),
    ):
        llm = made.evaluation.llm.model_copy(update=update)
        asked = made.model_copy(update={"evaluation": made.evaluation.model_copy(update={"llm": llm})})
        with pytest.raises(ConfigError, match="a deployment"):
            refuse_what_is_not_allowed(asked, Machine())
        refuse_what_is_not_allowed(asked, machine)


def test_the_machines_file(tmp_path: Path) -> None:
    assert machine_file({"HOME": "/home/me"}) == Path("/home/me/.config/rloo/machine.toml")
    assert machine_file({"XDG_CONFIG_HOME": "/c"}) == Path("/c/rloo/machine.toml")
    assert machine_file({FILE: "/m.toml"}) == Path("/m.toml")
    file = tmp_path / "machine.toml"
    assert load_machine(file) == Machine(source=file)
    file.write_text('functions = ["a:b"]\npaths = ["/data"]\n')
    assert load_machine(file) == Machine(("a:b",), (Path("/data"),), source=file)
    for text, sentence in (
        ("functions = 3", "each a list of texts"),
        ("function = []", "each a list of texts"),
        ('paths = ["data"]', "paths must be absolute, not data"),
        ("paths = [", "cannot be read"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            load_machine(file)


def test_a_deployment_is_refused_before_anything_starts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE, str(root / "none.toml"))
    parameters = {
        "experiment": "tiny", "from_stage": None, "until": None, "only": [], "force": [],
        "overrides": ["data=tables", f"data.path={Path(__file__).parents[2]}/conf", "model=pretrained",
                      f"model.path={Path(__file__).parents[2]}/conf"],
    }  # fmt: skip
    with pytest.raises(ConfigError):
        deployed.request(parameters, root)
    parameters["overrides"] = ["reward.terms=[os:system]"]
    with pytest.raises(ConfigError, match="imports only functions that"):
        deployed.request(parameters, root)
    parameters["overrides"] = []
    assert deployed.request(parameters, root)[0].name == "tiny"
