"""Where studies run: one after the other, and no more points at a time than fit; all with fakes."""

import threading
import time
from contextlib import nullcontext

import pytest

from pipelines.config_errors import ConfigError
from pipelines.console import Console
from pipelines.studies import starting, tasks
from pipelines.studies.page import StudyPage
from pipelines.studies.point import Returned
from pipelines.studies.run import Options, Prepared
from pipelines.studies.starting import locally, one_after_the_other
from tests.pipelines.studies.errands import errand
from tests.pipelines.studies.examples import small

MANY, ALL = 2, [str(place) for place in range(8)]


class Counter:
    """How many are inside at a time, at most."""

    def __init__(self):
        self.now = self.most = 0
        self.lock = threading.Lock()

    def enter(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self):
        with self.lock:
            self.now -= 1


class FakePool:
    """Takes a moment an errand; one called `broken` raises."""

    def __init__(self):
        self.counter, self.stopped = Counter(), False

    def run(self, what):
        self.counter.enter()
        time.sleep(0.05)
        self.counter.leave()
        if what.name == "broken":
            raise ConfigError("broken")
        return Returned(what.name)

    def stop(self):
        self.stopped = True


@pytest.fixture
def studies(tmp_path):
    """Two studies, prepared."""

    def prepared(title):
        return Prepared(small(tmp_path, title=title), [], Options(tmp_path), [f"a word about {title}"])

    return [prepared("The first"), prepared("The second")]


@pytest.fixture
def events(monkeypatch):
    """What was checked and computed, in order; the checks are fakes."""
    events = []
    monkeypatch.setattr(starting, "check", lambda each: events.append(f"check {each.study.title}"))
    return events


def test_all_are_checked_before_the_first_is_computed(studies, events):
    def compute(each):
        events.append(f"compute {each.study.title}")
        return StudyPage(each.study.title, "")

    pages = one_after_the_other(studies, Console(), compute, together=False)
    assert events == ["check The first", "check The second", "compute The first", "compute The second"]
    assert [page.title for page in pages] == ["The first", "The second"]
    assert not list(studies[0].options.root.glob("*.html"))


def test_what_is_wrong_with_the_last_one_stops_all(studies, monkeypatch):
    def check(each):
        if each is studies[-1]:
            raise ConfigError("wrong")

    monkeypatch.setattr(starting, "check", check)
    with pytest.raises(ConfigError, match="wrong"):
        one_after_the_other(studies, Console(), lambda each: pytest.fail("computed"), together=True)


@pytest.mark.usefixtures("events")
def test_the_page_of_all_is_written_after_each(studies):
    together, found = studies[0].options.root / "studies-laptop.html", []

    def compute(each):
        found.append(together.read_text() if together.exists() else "")
        return StudyPage(each.study.title, "A question?")

    one_after_the_other(studies, Console(), compute, together=True)
    found.append(together.read_text())
    assert [[title in page for title in ("The first", "The second")] for page in found] == [
        [False, False], [True, False], [True, True]
    ]  # fmt: skip


def test_local_errands_are_never_more_than_fit():
    pool = FakePool()
    made = list(locally(MANY, pool)([errand(name, "return") for name in ALL]))
    assert sorted(found.name for found in made) == ALL
    assert pool.counter.most == MANY
    assert not pool.stopped


def test_an_error_stops_the_local_pool():
    pool = FakePool()
    with pytest.raises(ConfigError, match="broken"):
        list(locally(MANY, pool)([errand(name, "return") for name in ("broken", *ALL)]))
    assert pool.stopped


@pytest.mark.parametrize("place", ["this process", "a flow"])
def test_processes_get_the_gpus_of_the_study(monkeypatch, place):
    class FakePrepared:
        workers, gpus, options = MANY, ["4", "7"], Options(None)

    def pool(gpus):
        given.append(gpus)
        return nullcontext()

    given = []
    monkeypatch.setattr(starting, "Pool", pool)
    monkeypatch.setattr(starting, "run_study", lambda *_: None)
    monkeypatch.setattr("pipelines.flow_ends.held_record", lambda *_: None)
    (starting.in_flow if place == "a flow" else starting._directly)(FakePrepared(), Console())
    assert given == [["4", "7"]]


class FakeFuture:
    """A task run that ends when it is waited for."""

    def __init__(self, name, counter):
        self.task_run_id, self.name, self.counter = f"id of {name}", name, counter

    def result(self, raise_on_failure):
        self.counter.leave()
        return Returned(self.name)


def test_tasks_are_never_more_than_fit(monkeypatch):
    class FakeTask:
        task_key = "point"

        def submit(self, name, what, local):
            counter.enter()
            return FakeFuture(name, counter)

    class FakeRecord:
        def task(self, run, record):
            states.append((run, record.state.type))

    counter, states = Counter(), []
    monkeypatch.setattr(tasks, "make_point", FakeTask())
    monkeypatch.setattr(tasks, "as_completed", lambda futures: iter(futures[::-1]))
    errands = [errand(name, "return") for name in ALL]
    made = list(tasks.as_tasks(errands, MANY, pool=None, record=FakeRecord()))
    assert sorted(found.name for found in made) == ALL
    assert counter.most == MANY
    assert [kind for _, kind in states].count("RUNNING") == [kind for _, kind in states].count("COMPLETED") == len(ALL)
