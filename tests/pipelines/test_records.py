"""Runs and studies of a run root: what is listed, and what is gone on with by which command."""

import pytest

from pipelines.config_errors import ConfigError
from pipelines.evidence import FAILED, FINISHED, KILLED, RECORDS, Evidence, RunState
from pipelines.records import find_record, records, to_resume
from pipelines.runs_table import print_rows, rows_of
from pipelines.store import Store

STUDY = {"study": "kl", "profile": "quick", "seeds": 2, "overrides": ["algorithm.steps=3", "name=a b"]}
COMMAND = "rloo study kl --profile quick --seeds 2 algorithm.steps=3 'name=a b'"


def record(root, name, started, status=FINISHED, **more):
    state = RunState(status=status, started=started, ended=started + 5000, **more)
    Evidence(root, root / RECORDS / name, state).save()
    return state.key


@pytest.fixture
def root(tmp_path):
    """A run, then a study with what its points share, a finished point and a failed one."""
    record(tmp_path, "20260101-a", 1, typed={"overrides": ["seed=1"]})
    key = record(tmp_path, "study-kl-quick", 2, status=KILLED, typed=STUDY)
    record(tmp_path, "study-kl-quick.data", 3, parent=key, tags={"shared": "data"})
    record(tmp_path, "study-kl-quick.p0", 4, parent=key, typed={"overrides": ["seed=0"]})
    record(tmp_path, "study-kl-quick.p1", 5, parent=key, status=FAILED)
    return tmp_path


def test_a_study_is_one_row_with_its_points_counted(root):
    study, run = rows_of(Store(root), everything=False)
    assert (study["run"], study["points"], study["command"]) == ("study-kl-quick", {FINISHED: 1, FAILED: 1}, COMMAND)
    assert run["run"] == "20260101-a"
    assert "points" not in run


def test_points_are_listed_when_all_are_wished(root):
    names = [row["run"] for row in rows_of(Store(root), everything=True)]
    assert names == [each.name for each in records(root)]
    assert len(names) == 5


def test_runs_whose_study_is_gone_are_listed(root):
    (root / RECORDS / "study-kl-quick" / "run.json").unlink()
    assert len(rows_of(Store(root), everything=False)) == 4


def test_the_table_says_how_many_points_and_what_was_typed(root, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    print_rows(rows_of(Store(root), everything=False), root)
    shown = capsys.readouterr().out
    assert "study-kl-quick  killed" in shown  # whole, however narrow: it is typed again
    words = set(shown.split())
    assert {"points,", *COMMAND.split()[1:6]} <= words


def test_last_is_no_point_of_a_study(root):
    assert find_record(root, "last").name == "study-kl-quick"


@pytest.mark.parametrize(
    ("name", "what"), [("study-kl-quick", "a study"), ("study-kl-quick.p1", "a point of the study")]
)
def test_a_study_is_gone_on_with_by_starting_it(root, name, what):
    with pytest.raises(ConfigError) as refused:
        to_resume(root, name)
    assert str(refused.value).startswith(f"{name} is {what}")
    assert str(refused.value).endswith(f"started: {COMMAND}")
