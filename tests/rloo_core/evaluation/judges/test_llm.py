"""A language model as judge, against a real server that misbehaves."""

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from rloo_core.evaluation.judges.base import JudgeError, Question, judge_both_orders
from rloo_core.evaluation.judges.llm import LlmJudge, read_template, verdict_of, wait_seconds
from tests.rloo_core.evaluation.judges.chat_server import COMPLETION_TOKENS, PROMPT_TOKENS, ChatServer
from tests.rloo_core.stages.small import LLM

KEY = "sk-secret-of-this-test"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("RLOO_TEST_KEY", KEY)


def judge(server, tmp_path, say=lambda line: None, **changes):
    values = {"base_url": server.url, "cache": str(tmp_path / "cache")} | changes
    return LlmJudge(LLM.model_copy(update=values), say)


def questions(count):
    """Question i is about post-i; its first completion is the longer one where i is even."""
    return [Question(f"post-{i}.", *(("longer text", "short") if i % 2 == 0 else ("short", "longer text")), {})
            for i in range(count)]  # fmt: skip


def test_nothing_is_lost_and_nothing_asked_twice_however_the_server_misbehaves(tmp_path):
    troubles = ("busy", "error", "slow", "no json", "html", "empty", "cut connection")
    plan = {f"post-{i}.": [trouble] for i, trouble in enumerate(troubles)}
    plan["post-7."] = ["busy", "error", "no json"]  # three in a row; the fourth attempt is the last one
    with ChatServer(plan) as server:
        asked = judge(server, tmp_path, timeout_seconds=2.0)
        judgements = judge_both_orders(asked, questions(10))
        assert [j.outcome for j in judgements] == [1.0, 0.0] * 5
        assert len(server.answered) == sum(server.answered.values()) == 20  # ten pairs in two orders, each once
        assert len(server.requests) == 20 + 7 + 3
        assert 2 <= server.most_at_once <= 4
        assert asked.usage() == {
            "answers": 20.0, "prompt_tokens": 20.0 * PROMPT_TOKENS, "completion_tokens": 20.0 * COMPLETION_TOKENS,
            "cost": pytest.approx(20 * (2.0 * PROMPT_TOKENS + 8.0 * COMPLETION_TOKENS) / 1e6),
        }  # fmt: skip
        again = judge(server, tmp_path)
        assert judge_both_orders(again, questions(10)) == judgements
        assert len(server.requests) == 30
        assert again.usage() == asked.usage()


def test_verdicts_that_cannot_be_read_are_counted_apart_and_not_asked_again(tmp_path):
    replies = [
        "refusal: I will not compare these.",
        "Preferred: C",  # no label of ours
        "Preferred: Summary A",
        "Preferred: A\nPreferred: B",
        "Both have their merits, and the first one",  # cut off
        "",
    ]
    plan = {f"post-{i}.": [reply] for i, reply in enumerate(replies)} | {"post-6.": ["filtered"]}
    with ChatServer(plan) as server:
        found = judge_both_orders(judge(server, tmp_path, concurrency=1), questions(8))
        assert [j.outcome for j in found] == [None] * 7 + [0.0]
        assert [j.b_first for j in found[:2]] == [1.0, 0.0]  # the other order was answered, and is kept
        assert judge_both_orders(judge(server, tmp_path), questions(8)) == found
        assert len(server.requests) == 16


def test_a_label_is_that_of_the_order_shown(tmp_path):
    """A judge who always says A has no opinion; one who always prefers the longer text says so in both orders."""
    with ChatServer(reply=lambda question: "Preferred: A") as server:
        found = judge_both_orders(judge(server, tmp_path), questions(4))
        assert [(j.a_first, j.b_first, j.outcome) for j in found] == [(1.0, 0.0, 0.5)] * 4


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("Preferred: A", 1.0), ("so\n\n**Preferred: B**\n", 0.0), ("preferred: TIE.", 0.5),
        ("Preferred: A\nPreferred: A", 1.0),
        ("I preferred: B", None), ("Preferred:", None), ("A", None), ("Preferred: A or B", None),
    ],
)  # fmt: skip
def test_verdicts(reply, verdict):
    assert verdict_of(reply) == verdict


def test_what_stays_unanswered_is_an_error_and_the_rest_is_kept(tmp_path):
    plan = {"post-3.": ["error"] * 8}
    with ChatServer(plan) as server:
        with pytest.raises(JudgeError, match=r"2 of 8 questions .* after 4 attempts each.*oops.*same command"):
            judge_both_orders(judge(server, tmp_path), questions(4))
        assert sum(server.answered.values()) == 6
        assert [j.outcome for j in judge_both_orders(judge(server, tmp_path), questions(4))] == [1.0, 0.0, 1.0, 0.0]
        assert set(server.answered.values()) == {1}


def test_a_server_that_is_not_there_is_given_up_soon(tmp_path):
    with ChatServer({"post": ["error"] * 1000}) as server:
        with pytest.raises(JudgeError, match="no answer to 12 questions"):
            judge_both_orders(judge(server, tmp_path), questions(100))
        # 12 questions and the 4 under way, each asked 4 times, and those begun before the news spreads; 800 in all
        assert (12 * 4) <= len(server.requests) <= 2 * (12 + 4) * 4


def test_a_wrong_key_ends_it_at_once_and_is_not_repeated(tmp_path, caplog):
    caplog.set_level("DEBUG")
    with ChatServer({"post": ["wrong key"] * 1000}) as server:
        with pytest.raises(JudgeError, match="Incorrect API key provided") as error:
            judge_both_orders(judge(server, tmp_path), questions(50))
        assert len(server.requests) <= 12
        assert server.keys[0] == f"Bearer {KEY}"
    assert KEY not in str(error.value)
    assert KEY not in caplog.text
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_key_is_needed_for_openai_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("RLOO_TEST_KEY")
    with pytest.raises(ValueError, match="environment variable RLOO_TEST_KEY"):
        LlmJudge(LLM.model_copy(update={"base_url": None}))
    LlmJudge(LLM)


def test_a_changed_question_is_another_question(tmp_path):
    with ChatServer() as server:
        judge_both_orders(judge(server, tmp_path), questions(2))
        judge_both_orders(judge(server, tmp_path, model="other"), questions(2))
        judge_both_orders(judge(server, tmp_path, temperature=None), questions(2))
        judge_both_orders(judge(server, tmp_path), [Question("post-0.", "longer text", "brief", {})])
        assert len(server.requests) == 4 + 4 + 4 + 2
        assert "temperature" not in server.requests[8]


def test_a_forecast_asks_nothing_and_knows_the_cache(tmp_path):
    with ChatServer() as server:
        asked = judge(server, tmp_path)
        judge_both_orders(asked, questions(2))
        forecast = asked.forecast([*questions(5), *questions(5)])
        assert len(server.requests) == 4
    assert (forecast.questions, forecast.cached, forecast.completion_tokens) == (3, 2, 150)
    characters = sum(len(m["content"]) for m in server.requests[0]["messages"])
    assert forecast.prompt_tokens == pytest.approx(3 * characters / 4, rel=0.01)
    assert forecast.cost == pytest.approx((2.0 * forecast.prompt_tokens + 8.0 * 150) / 1e6)


def state(attempt, **headers):
    error = SimpleNamespace(response=SimpleNamespace(headers=headers))
    return SimpleNamespace(attempt_number=attempt, outcome=SimpleNamespace(exception=lambda: error))


def test_waits_grow_and_follow_the_server_up_to_a_limit():
    assert wait_seconds(state(1, **{"retry-after": "3"}), 60.0) == 3.0
    assert wait_seconds(state(1, **{"retry-after": "300"}), 60.0) == 60.0
    assert wait_seconds(state(1, **{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), 60.0) <= 0.5
    assert max(wait_seconds(state(5), 60.0) for _ in range(200)) > 4.0
    assert max(wait_seconds(state(30), 60.0) for _ in range(200)) <= 60.0


def test_templates_show_both_texts_and_nothing_is_substituted_inside_them(tmp_path):
    for name in ("tldr", "hh"):
        system, user = read_template(name)
        text = user.substitute(prompt="P $first", first="F", second="S")
        assert "P $first" in text
        assert text.index("P $first") < text.index("\nF\n") < text.index("\nS\n") < text.index("Preferred: tie")
        assert "$" not in system.template
    (tmp_path / "own").write_text("Which? $prompt $first")
    with pytest.raises(ValueError, match=r"must hold \$prompt, \$first and \$second"):
        read_template(str(tmp_path / "own"))
    with pytest.raises(ValueError, match="neither one of hh, tldr nor a file"):
        read_template("gpt")


ASK = """
import sys
from pathlib import Path
from tests.rloo_core.evaluation.judges.test_llm import judge, questions
from rloo_core.evaluation.judges.base import judge_both_orders
from types import SimpleNamespace
judge_both_orders(judge(SimpleNamespace(url=sys.argv[1]), Path(sys.argv[2]), timeout_seconds=60.0), questions(20))
"""


def test_killed_in_the_middle_it_goes_on_without_asking_again(tmp_path):
    """SIGKILL while four questions hang: the 13 answers that came are not asked for again, the other 27 are."""
    with ChatServer(hold_after=13) as server:
        child = subprocess.Popen([sys.executable, "-c", ASK, server.url, str(tmp_path)], env=dict(os.environ))
        hanging = threading.Event()
        for _ in range(3000):
            if len(server.requests) >= 13 + 4 or child.poll() is not None:
                break
            hanging.wait(0.1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert len(server.requests) == 17
        before = dict(server.answered)
        server.hold_after = None
        judgements = judge_both_orders(judge(server, tmp_path), questions(20))
        assert [j.outcome for j in judgements] == [1.0, 0.0] * 10
        assert len(before) == 13
        assert len(server.answered) == 40
        assert set(server.answered.values()) == {1}
