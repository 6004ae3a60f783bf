"""How far a study is, and how many processes it may have."""

import re

import pytest

from pipelines.config_errors import ConfigError
from pipelines.studies import budget
from pipelines.studies.budget import workers
from pipelines.studies.point import Returned
from pipelines.studies.progress import Progress, in_words


def test_nothing_is_known_before_the_first_point():
    progress = Progress(8, 2)
    assert (progress.seconds_left, progress.percent) == (None, 0.0)
    assert str(progress) == "0/8: 0 done, 0 reused, 0 failed"
    assert Progress(0, 2).percent == 0.0


def test_time_left_comes_from_what_was_computed():
    progress = Progress(8, 2)
    progress.note(Returned("a", computed=("policy",), seconds=10.0))
    progress.note(Returned("b", computed=("policy",), seconds=20.0))
    progress.note(Returned("c"))  # reused: says nothing about time
    progress.note(Returned("d", error="broken", seconds=1.0))
    assert (progress.done, progress.reused, progress.failed, progress.percent) == (2, 1, 1, 50.0)
    assert progress.seconds_left == 15.0 * 4 / 2
    assert str(progress) == "4/8: 2 done, 1 reused, 1 failed; about 30 s left"


def test_nothing_is_left_at_the_end():
    progress = Progress(1, 2)
    progress.note(Returned("a", computed=("policy",), seconds=10.0))
    assert str(progress) == "1/1: 1 done, 0 reused, 0 failed"


@pytest.mark.parametrize(("seconds", "words"), [(39.6, "40 s"), (720.0, "12 min"), (12600.0, "3.5 h")])
def test_times_in_words(seconds, words):
    assert in_words(seconds) == words


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(budget.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(budget, "free_memory", lambda: 10.0)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("threads", "memory", "wanted", "total", "expected"),
    [
        (1, 0.5, None, None, 8),  # cores
        (3, 0.5, None, None, 2),
        (16, 0.5, None, None, 1),  # one is always tried
        (1, 2.0, None, None, 4),  # 80 % of 10 GiB
        (1, 2.0, None, 6.0, 3),
        (1, 2.0, 3, None, 3),
        (1, 0.5, 12, None, 12),  # more than cores, if a person says so
    ],
)
def test_workers_are_what_cores_and_memory_allow(threads, memory, wanted, total, expected):
    assert workers(threads, memory, wanted, total) == expected


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("wanted", "total", "sentence"),
    [
        (5, None, "--workers 5: so many points take 10.0 GiB (2.0 each: `memory` of the study), but 8.0 GiB may be "
                  "used; set --workers to at most 4"),
        (None, 1.0, "a point may take 2.0 GiB (`memory` of the study), but 1.0 GiB may be used"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(wanted, total, sentence):
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        workers(1, 2.0, wanted, total)


def test_free_memory_is_some_gib():
    assert 0.0 < budget.free_memory() < 1e5
