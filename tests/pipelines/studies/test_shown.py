"""What Prefect's pages show of a study, without a server: the artifacts as they are sent."""

import pytest

from pipelines.console import Console
from pipelines.studies import flow
from pipelines.studies.conduct import Conduct
from pipelines.studies.page import StudyPage
from pipelines.studies.point import Returned
from pipelines.studies.points import points_of
from pipelines.studies.progress import Progress
from pipelines.studies.run import failed_points
from tests.pipelines.studies.examples import small


class FakeRun:
    """In the place of the study's MLflow run."""

    run_id = "0123456789abcdef"

    class connection:
        experiment_id = "7"

    def __init__(self):
        self.tags = {}

    def tag(self, name, value):
        self.tags[name] = value

    def progress(self, text):
        self.tag("progress", text)


@pytest.fixture
def sent(monkeypatch):
    """Every artifact by its key: of a progress, percent and text of each state."""
    sent = {"study": []}
    monkeypatch.setattr(
        flow, "create_progress_artifact", lambda p, key, description: sent[key].append((p, description)) or "id"
    )
    monkeypatch.setattr(
        flow, "update_progress_artifact", lambda _, progress, description: sent["study"].append((progress, description))
    )
    monkeypatch.setattr(flow, "create_table_artifact", lambda rows, key, description: sent.update({key: rows}))
    monkeypatch.setattr(flow, "create_markdown_artifact", lambda text, key, description: sent.update({key: text}))
    return sent


@pytest.fixture
def conduct(tmp_path):
    study = small(tmp_path, title="A <b> title", seeds={"count": 1, "vary": "policy"}, measures={})
    points = points_of(study, str(tmp_path / "runs"))
    return Conduct(study, points, FakeRun(), Console(), Progress(len(points), 2))


def test_progress_is_there_before_the_first_point(sent, conduct):
    shown = flow.Shown(conduct)
    assert sent["study"] == [(0.0, r"A \<b\> title: 0/4: 0 done, 0 reused, 0 failed")]
    conduct.on_progress = shown.update
    conduct._note(Returned("a", {"policy": "1"}))
    assert sent["study"][1] == (25.0, r"A \<b\> title: 1/4: 0 done, 1 reused, 0 failed")


def test_each_point_has_a_row_that_is_shown_as_it_is(sent, conduct):
    shown = flow.Shown(conduct)
    for found in (
        Returned("method=rloo, seed=0", {"policy": "1"}, ("policy",), 2.4, 0.61),
        Returned("method=raft, seed=0", {"policy": "2"}),
        Returned("method=a|<i>, seed=0", seconds=1.0, error="policy: <b>broke</b>"),
    ):
        conduct._note(found)
    shown.finish("### Results")
    assert sent["points"] == [
        {"point": "method=rloo, seed=0", "state": "done", "seconds": "2", "memory, GiB": "0.6", "why": ""},
        {"point": "method=raft, seed=0", "state": "reused", "seconds": "", "memory, GiB": "", "why": ""},
        {
            "point": r"method=a\|\<i\>, seed=0",
            "state": "failed",
            "seconds": "1",
            "memory, GiB": "",
            "why": r"policy: \<b\>broke\</b\>",
        },
    ]
    assert all(sent["points"][0])  # a column without a name is not shown


def test_the_results_lead_to_mlflow(sent, conduct):
    flow.Shown(conduct).finish("### Results\n")
    assert sent["results"] == "### Results\n\nMLflow run of the whole: `01234567`; `rloo ui` shows it\n"


def test_a_flow_run_with_failed_points_says_which():
    def page(*failed):
        return StudyPage("", "", [], [], [], [], [], "", [(name, "why") for name in failed])

    assert failed_points([page(), page()]) == ""
    assert failed_points([page(), page("a")]) == "1 point failed: a. The artifact `points` says why"
    assert failed_points([page(*"abcd"), page(*"efg")]).startswith("7 points failed: a; b; c; d; e; 2 more. The")
