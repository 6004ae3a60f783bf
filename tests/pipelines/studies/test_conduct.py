"""A study in progress: what is not started, what a failure takes with it, what it is called."""

import re

import pytest

from pipelines.config_errors import Refused
from pipelines.console import Console
from pipelines.evidence import FINISHED, RECORDS, Evidence, RunState
from pipelines.studies.conduct import Conduct, only_once, record_name
from pipelines.studies.loading import load_definition
from pipelines.studies.point import Errand, Returned
from pipelines.studies.points import points_of
from pipelines.studies.progress import Progress
from tests.pipelines.studies.examples import small, study_file


class FakeRun:
    """In the place of the study's MLflow run."""

    key = "study's key"

    def __init__(self, root):
        self.root = root
        self.evidence = Evidence(root, root / RECORDS / "study-small-laptop", RunState())
        self.told = []

    def progress(self, text):
        self.told.append(text)


class FakeMake:
    """Makes errands at once; those whose name begins with one of `broken` fail."""

    def __init__(self, broken=()):
        self.batches: list[list[Errand]] = []
        self.broken = broken

    def __call__(self, errands):
        if errands:
            self.batches.append(list(errands))
        for errand in errands:
            if errand.name.startswith(tuple(self.broken)) and self.broken:
                yield Returned(errand.name, error="out of luck")
            else:
                yield Returned(errand.name, {"policy": "abc"}, ("policy",), seconds=2.0)

    @property
    def names(self):
        return [[errand.name for errand in batch] for batch in self.batches]


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    root = tmp_path_factory.mktemp("conduct")
    seeds = {"count": 2, "vary": "everything"}
    return points_of(small(root, seeds=seeds, axes={"K": {"setting": "algorithm.group_size", "values": [2, 4]}},
                           measures={}), str(root))  # fmt: skip


@pytest.fixture
def conduct(tmp_path, points):
    def begin(**more):
        study = small(tmp_path)
        return Conduct(study, points, FakeRun(tmp_path), Console(), Progress(len(points), 2), **more)

    return begin


def pretend_finished(conduct, monkeypatch, names, shared=True):
    """As if the stages of these points were in the store, and (`shared`) all that several points need."""

    def plan(_, point, until):
        whole = until == point.until
        return {until: "abc"} if (point.name in names if whole else shared) else None

    monkeypatch.setattr(Conduct, "_plan", plan)
    for name in names:
        directory = conduct.run.root / RECORDS / conduct._record(name)
        Evidence(conduct.run.root, directory, RunState(status=FINISHED, notes=[note("policy", "abc")])).save()


def note(stage, fingerprint):
    return {"stage": stage, "action": "run", "fingerprint": fingerprint}


def test_what_is_shared_comes_first_wave_by_wave(conduct):
    make = FakeMake()
    returned = conduct().make(make)
    assert [len(batch) for batch in make.names] == [1, 2, 2, 4]
    assert make.names[0] == ["data, shared (K=2, seed=0)"]
    assert make.names[1] == ["sft, shared (K=2, seed=0)", "sft, shared (K=2, seed=1)"]
    assert make.names[3] == ["K=2, seed=0", "K=4, seed=0", "K=2, seed=1", "K=4, seed=1"]
    assert [batch[0].until for batch in make.batches] == ["data", "sft", "reward_model", "policy"]
    assert list(returned) == make.names[3]


def test_points_know_their_study_and_their_axes(conduct):
    make = FakeMake()
    conduct().make(make)
    shared, point = make.batches[0][0], make.batches[3][1]
    assert point.parent == shared.parent == "study's key"
    assert point.tags == {"study": "small", "profile": "laptop", "seed": "0", "axis.K": "4"}
    assert shared.tags == {"study": "small", "profile": "laptop", "seed": "0", "shared": "data"}


def test_finished_points_are_not_started(conduct, monkeypatch):
    study, make = conduct(), FakeMake()
    pretend_finished(study, monkeypatch, ["K=2, seed=0", "K=4, seed=1"])
    returned = study.make(make)
    assert make.names == [["K=4, seed=0", "K=2, seed=1"]]
    assert returned["K=2, seed=0"] == Returned("K=2, seed=0", {"policy": "abc"})
    assert (study.progress.done, study.progress.reused, study.progress.failed) == (2, 2, 0)
    computed = {name: each.computed for name, each in study.returned.items() if each.computed}
    assert computed == {
        "K=4, seed=0": ("policy",),
        "K=2, seed=1": ("policy",),
    }


def test_a_point_whose_own_run_has_not_ended_well_is_started_again(conduct, monkeypatch):
    study, make = conduct(), FakeMake()
    pretend_finished(study, monkeypatch, ["K=2, seed=0"])
    Evidence(study.run.root, study.run.root / RECORDS / study._record("K=2, seed=0"), RunState(status="KILLED")).save()
    study.make(make)
    assert "K=2, seed=0" in make.names[0]


@pytest.mark.parametrize("notes", [[], [note("policy", "of B")], [note("policy", "abc"), note("evaluation", "x")]])
def test_a_point_whose_record_is_of_other_settings_is_made_again(conduct, monkeypatch, notes):
    """A study's file edited from A to B and back: the outputs of A are there, the record says B."""
    study, make = conduct(), FakeMake()
    pretend_finished(study, monkeypatch, ["K=2, seed=0", "K=4, seed=0"])
    record = study.run.root / RECORDS / study._record("K=2, seed=0")
    Evidence(study.run.root, record, RunState(status=FINISHED, notes=notes)).save()
    study.make(make)
    assert "K=2, seed=0" in make.names[0]
    assert "K=4, seed=0" not in make.names[0]


def test_a_failed_point_sinks_no_other(conduct, monkeypatch):
    study, make = conduct(), FakeMake(broken=["K=2, seed=1"])
    pretend_finished(study, monkeypatch, [])
    returned = study.make(make)
    assert {name: found.error for name, found in returned.items() if found.error} == {"K=2, seed=1": "out of luck"}
    assert (study.progress.done, study.progress.failed, study.progress.finished) == (3, 1, 4)


def test_a_broken_shared_output_fails_only_those_that_need_it(conduct):
    make = FakeMake(broken=["sft, shared (K=2, seed=1)"])
    returned = conduct().make(make)
    assert make.names[2] == ["reward_model, shared (K=2, seed=0)"]  # seed 1's would need the broken SFT model
    assert make.names[3] == ["K=2, seed=0", "K=4, seed=0"]
    errors = {name: found.error for name, found in returned.items() if found.error}
    assert errors == dict.fromkeys(["K=2, seed=1", "K=4, seed=1"], "sft, shared (K=2, seed=1): out of luck")


def test_progress_is_told_after_every_point(conduct, monkeypatch):
    calls = []
    study = conduct(on_progress=lambda: calls.append(None))
    pretend_finished(study, monkeypatch, ["K=2, seed=0"])
    study.make(FakeMake())
    assert len(calls) == len(study.run.told)
    assert study.run.told[-3] == "2/4: 1 done, 1 reused, 0 failed; about 2 s left"
    assert study.run.told[-1] == "4/4: 3 done, 1 reused, 0 failed"


def test_what_is_shared_is_told_while_it_is_made(conduct):
    study = conduct()
    study.make(FakeMake())
    said = [text for text in study.run.told if text.startswith("shared ")]
    assert [text for text in said if "sft" in text] == [f"shared sft: {made} of 2; then 4 points" for made in (0, 1, 2)]
    assert study.run.told[-1] == "4/4: 4 done, 0 reused, 0 failed"


def test_a_points_record_is_stable_safe_and_its_own(conduct):
    study = conduct()
    hostile = "method=PPO, λ = 1/../.., seed=0" * 10
    assert study._record("K=2, seed=0") == conduct()._record("K=2, seed=0")
    for name in ("K=2, seed=0", hostile):
        assert re.fullmatch(r"study-small-laptop\.[A-Za-z0-9_.=-]+\.[0-9a-f]{6}", study._record(name))
        assert len(study._record(name)) < 120
    assert study._record("a b") != study._record("a-b")  # both become a-b


def test_a_studys_record_is_the_same_however_many_seeds(tmp_path):
    study, more = small(tmp_path), small(tmp_path, count=9)
    assert record_name(study, ["paths.root=/a"]) == record_name(more, ["paths.root=/b"]) == "study-small.yaml-laptop"
    typed = record_name(study, ["algorithm.steps=3", "sft.epochs=1"])
    assert typed == record_name(study, ["sft.epochs=1", "paths.root=/a", "algorithm.steps=3"])
    assert len({typed, record_name(study, []), record_name(study, ["algorithm.steps=4"])}) == 3
    assert record_name(small(tmp_path, profile="quick"), []) == "study-small.yaml-quick"


def test_a_users_file_has_a_safe_record_of_its_own(tmp_path):
    """A file called as a study of conf/study is another study; a name may have any letter."""
    mine = load_definition(study_file(tmp_path, name="kl.yaml"), "laptop")
    assert record_name(mine, []) != record_name(load_definition("kl", "laptop"), [])
    odd = record_name(load_definition(study_file(tmp_path, name="π & my study.yaml"), "laptop"), [])
    assert re.fullmatch(r"[A-Za-z0-9_.=-]+", odd)


def test_a_study_is_computed_by_one_process_at_a_time(tmp_path):
    with only_once(tmp_path, "study-a"), only_once(tmp_path, "study-b"):
        second = only_once(tmp_path, "study-a")
        with pytest.raises(Refused, match="study-a is being computed by another process"):
            second.__enter__()
    with only_once(tmp_path, "study-a"):
        pass
