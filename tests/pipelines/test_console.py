"""What is printed: numbers at the end, bars on a terminal, few lines elsewhere, never a model's text as markup."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from pipelines import console as console_module
from pipelines.console import Console
from pipelines.report import final_table

SUMMARY = {
    "evaluation/sft/sampled/win_rate": 0.25,
    "evaluation/sft/sampled/win_rate_low": 0.223,
    "evaluation/sft/sampled/win_rate_high": 0.277,
    "evaluation/policy/sampled/win_rate": 0.5,
    "evaluation/difference/sampled/win_rate": 0.25,
    "evaluation/difference/sampled/win_rate_low": 0.2,
    "evaluation/difference/sampled/win_rate_high": 0.3,
    "evaluation/sft/sampled/length": 20.0,
    "evaluation/policy/sampled/length": 18.5,
    "evaluation/policy/greedy/finished": 1.0,
    "evaluation/sft/best_of_n/win_rate": 0.41,
}


def recorded(terminal: bool = False) -> Console:
    return Console(RichConsole(file=io.StringIO(), width=140, force_terminal=terminal, highlight=False))


def printed(console: Console) -> str:
    return console.rich.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_says_before_after_and_difference() -> None:
    console = recorded()
    console.rich.print(final_table(SUMMARY))
    lines = [" ".join(line.split()) for line in printed(console).splitlines()]
    assert lines[lines.index("sampled") + 1] == "win rate, % 25.0 [22.3, 27.7] 50.0 +25.0 [+20.0, +30.0]"
    assert "length, tokens 20.0 18.5 −1.5" in lines
    assert lines[lines.index("greedy") + 1] == "finished, % – 100.0 –"
    assert lines[lines.index("best of n") + 1] == "win rate, % 41.0"
    assert not any("gold" in line for line in lines)  # no gold reward is known: no row


def test_numbers_have_one_minus_sign_and_zero_has_none() -> None:
    console, who = recorded(), "evaluation/{}/sampled/proxy_reward".format
    change = {f"evaluation/difference/sampled/win_rate{end}": -0.25 for end in ("", "_low", "_high")}
    console.rich.print(final_table({**SUMMARY, **change, who("sft"): -0.001, who("policy"): -0.31}))
    lines = [" ".join(line.split()) for line in printed(console).splitlines()]
    assert "training reward 0.00 −0.31 −0.31" in lines
    assert "win rate, % 25.0 [22.3, 27.7] 50.0 −25.0 [−25.0, −25.0]" in lines


def test_the_table_fits_into_80_columns() -> None:
    rates = {f"evaluation/{who}/sampled/win_rate{end}": 0.987 for who in ("sft", "policy", "difference")
             for end in ("", "_low", "_high")}  # fmt: skip
    rates |= {"evaluation/policy/sampled/win_rate_high": 1.0}
    rewards = {f"evaluation/{who}/sampled/proxy_reward": 0.5 for who in ("sft", "policy")}  # the longest name
    console = Console(RichConsole(file=io.StringIO(), width=80))
    console.rich.print(final_table({**SUMMARY, **rates, **rewards}))
    assert "98.7 [98.7, 98.7]" in printed(console)
    assert "98.7 [98.7, 100.0]" in printed(console)
    assert "+98.7 [+98.7, +98.7]" in printed(console)
    assert "…" not in printed(console)


def test_the_end_says_where_things_are_and_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    default, other = tmp_path / "runs", tmp_path / "my runs"
    console = recorded()
    console.finished(
        SUMMARY, {"sft": 61.0, "policy": 120.4}, other / "store" / "policy" / "f" / "model", other, default
    )
    text = printed(console)
    assert "sft 61 s, policy 120 s; 181 s" in text
    assert "my runs/store/policy/f/model" in text
    assert "rloo ui paths.root='my runs'" in text
    console = recorded()
    console.finished({}, {}, None, default, default)
    assert "rloo ui\n" in printed(console)


def test_model_text_is_not_markup() -> None:
    for terminal in (False, True):
        console = recorded(terminal)
        with console.stage("policy") as display:
            display.progress(1, 2, "[/bold] [red]")
            display.message("sample: [link=file:///x]click[/link] [/]")
        assert "[link=file:///x]click[/link] [/]" in printed(console)


def test_lines_are_few_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now[0])
    console = recorded()
    with console.stage("sft") as display:
        for step in range(100):
            now[0] += 0.5
            display.progress(step + 1, 100, "loss 0.5")
    lines = printed(console).splitlines()
    assert len(lines) == 2 + 5  # start, end, and one every ten of the fifty seconds
    assert "20/100 loss 0.5 (10 s)" in lines[1]


def test_a_bar_shows_step_and_note_on_a_terminal() -> None:
    console = recorded(terminal=True)
    with console.stage("sft") as display:
        display.progress(3, 7, "loss 0.5")
        display._bars.refresh()  # type: ignore[attr-defined]
    assert "3/7" in printed(console)
    assert "loss 0.5" in printed(console)


def test_a_stage_that_fails_is_not_done() -> None:
    console = recorded()
    with pytest.raises(ValueError), console.stage("sft"):  # noqa: PT011
        raise ValueError
    assert "stopped" in printed(console)
    assert "done" not in printed(console)


def test_a_warning_before_a_log_is_open_is_said_once() -> None:
    code = "from pipelines.console import Console; Console().warning('MLFLOW_RUN_ID is set')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("warning: MLFLOW_RUN_ID is set\n", "")
