"""`rloo judge`: two files of completions before judges, and what is kept and shown of it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.config_errors import ConfigError
from pipelines.pictures import Drawing
from pipelines.report_page import Page, Picture, Section, Table, number, render, table_of
from rloo_core.data.files import FORMATS, format_of
from rloo_core.data.readers import read_rows
from rloo_core.evaluation.duels import Duel, Pairs
from rloo_core.evaluation.judges.base import Judge
from rloo_core.stages.evaluation_files import judgement_rows, write_json, write_lines
from rloo_core.stages.evaluation_results import shown_text

# What a column may be called where it is not named; the first one that is there.
COLUMNS = {
    "prompt": ("prompt", "instruction", "input", "context", "query"),
    "completion": ("completion", "output", "response", "sample", "answer", "text"),
    "reference": ("reference", "ref_text", "target", "summary"),
}
SHOWN_PAIRS = 12
PARTS = {"value": "", "low": "_low", "high": "_high"}  # of an estimate, by the end of its names


def read_completions(
    path: Path, named: Mapping[str, str | None], needed: Sequence[str] = ("prompt", "completion")
) -> list[dict[str, Any]]:
    """Rows with `prompt`, `completion` and, where there is one, `reference`, as text; further columns as they are.

    Args:
        path: JSONL, JSON, CSV or Parquet, plain or .gz.
        named: Columns that a person named, by what they hold.
        needed: What must be there; the rest may.

    Raises:
        ConfigError: If the file cannot be read, or a column is missing.
    """
    if not path.is_file() or format_of(path) is None:
        raise ConfigError(f"{path} is no file of completions; expected {', '.join(FORMATS)}, also .gz")
    try:
        source = read_rows(path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    bad = [row for row in source if row.problem]
    if bad or not source:
        raise ConfigError(f"{bad[0].where}: {bad[0].problem}" if bad else f"{path} holds no rows")
    columns = {kind: _column(kind, named.get(kind), source[0].values, path, kind in needed) for kind in COLUMNS}
    return [_row(row.values, columns, row.where) for row in source]


def _column(kind: str, named: str | None, values: Mapping[str, Any], path: Path, needed: bool) -> str | None:
    choices = COLUMNS[kind] if named is None else (named,)
    found = next((name for name in choices if name in values), None)
    if found is None and (named is not None or needed):
        raise ConfigError(
            f"{path} has no column {' or '.join(choices)} for the {kind}; it has {', '.join(values)}. "
            f"Name it: --{kind} COLUMN"
        )
    return found


def _row(values: Mapping[str, Any], columns: Mapping[str, str | None], where: str) -> dict[str, Any]:
    row = dict(values)
    for kind, column in columns.items():
        if column is None:
            continue
        value = values.get(column)
        if value is None and kind == "reference":
            continue
        if not isinstance(value, str | list) or (kind == "prompt" and not value):
            raise ConfigError(f"{where}: the {kind} (column {column}) must be text or messages, but is {value!r:.80}")
        row[kind] = shown_text(value)
    return row


def keep(out: Path, pairs: Pairs, result: Duel, names: tuple[str, str]) -> None:
    """Write results.json, judgements.jsonl and report.html into a directory."""
    out.mkdir(parents=True, exist_ok=True)
    summary = {"a": names[0], "b": names[1], "pairs": len(pairs.questions), "prompts": len(set(pairs.prompts))}
    write_json(out / "results.json", summary | {"results": result.summary()})
    by_judge = {judge: {"a_against_b": comparison} for judge, comparison in result.comparisons.items()}
    write_lines(out / "judgements.jsonl", judgement_rows(by_judge))
    (out / "report.html").write_text(render(duel_page(pairs, result, names)), encoding="utf-8")


def rate_rows(result: Duel) -> list[dict[str, Any]]:
    """A row a judge: win rates of A in percent, and how the judge behaved."""
    rows = []
    for judge, comparison in result.comparisons.items():
        found = comparison.summary()
        row: dict[str, Any] = {"judge": judge, "A wins, %": _rate(found, "win_rate")}
        row |= {"equal length, %": _rate(found, "length_controlled_win_rate")}
        row |= {"ties, %": number(100 * found["ties"], 1) if "ties" in found else "–"}
        row |= {"pairs": f"{found['judged']:.0f}", "no verdict": f"{found['unparsed']:.0f}"}
        consistent = found.get("position_consistency")
        row |= {"consistent, %": "–" if consistent is None else number(100 * consistent, 1)}
        if judge in result.accuracy:
            row |= {"accuracy, %": number(100 * result.accuracy[judge], 1)}
        rows.append(row)
    return rows


def agreement_rows(result: Duel) -> list[dict[str, Any]]:
    """A row for every two judges or people."""
    return [
        {"one": one, "other": other, "pairs": str(agreed.compared), "agreement, %": number(100 * agreed.share, 1),
         "Cohen's kappa": number(agreed.kappa, 3)}
        for (one, other), agreed in result.agreements.items()
    ]  # fmt: skip


def measure_rows(result: Duel) -> list[dict[str, Any]]:
    """A row a measure of the texts."""
    a, b = result.measures
    return [{"measure": name.replace("_", " "), "A": number(a[name], 3), "B": number(b.get(name), 3)} for name in a]


def duel_page(pairs: Pairs, result: Duel, names: tuple[str, str]) -> Page:
    """The report of two files."""
    lead = [
        f"A is {names[0]}, B is {names[1]}: {len(pairs.questions)} pairs on {len(set(pairs.prompts))} prompts. "
        f"{pairs.unmatched[0]} rows of A and {pairs.unmatched[1]} of B had no counterpart. Every pair was judged in "
        f"both orders; intervals are 95 %, from a bootstrap over prompts."
    ]
    sections = [
        Section("Judges", tables=[table_of("Win rates of A", rate_rows(result))], pictures=_pictures(result)),
        Section("Agreement", tables=[table_of("Of every two judges or people", agreement_rows(result))])
        if result.agreements
        else None,
        Section("Texts", tables=[table_of("Measures of the texts", measure_rows(result))]),
        Section(
            "Pairs",
            folded=[_pair_table(pairs, result, names, i) for i in range(min(SHOWN_PAIRS, len(pairs.questions)))],
        ),
    ]
    return Page(f"{names[0]} against {names[1]}", lead, [section for section in sections if section is not None])


def forecast_lines(judges: Sequence[Judge], pairs: Pairs) -> list[str]:
    """What judges that cost something would take for these pairs in both orders; nothing is asked."""
    lines = []
    questions = [*pairs.questions, *(question.swapped() for question in pairs.questions)]
    for judge in judges:
        forecast = getattr(judge, "forecast", None)
        if forecast is None:
            lines.append(f"{judge.name}: costs nothing")
            continue
        found = forecast(questions)
        lines.append(
            f"{judge.name}: {found.questions} questions to ask ({found.cached} known), about {found.prompt_tokens} "
            f"prompt and at most {found.completion_tokens} completion tokens: {found.cost:.2f} US dollars or less"
        )
    return lines


def _rate(found: Mapping[str, float], name: str) -> str:
    if name not in found:
        return "–"
    value, low, high = (number(100 * found[name + end], 1) for end in ("", "_low", "_high"))
    return f"{value} [{low}, {high}]"


def _pictures(result: Duel) -> list[Picture]:
    from rloo_core.evaluation.figure_rows import length_label
    from rloo_core.stages.evaluation_files import comparison_details

    details = comparison_details(result.comparisons)
    rows = [
        {"label": f"{judge}{end}"} | {part: 100 * found[f"{key}{suffix}"] for part, suffix in PARTS.items()}
        for judge, found in details.items()
        for key, end in (("win_rate", ""), ("length_controlled_win_rate", ", at equal length"))
        if key in found
    ]
    bins = {judge: found["by_length"] for judge, found in details.items() if found["by_length"]}
    values = [
        {"judge": judge, "length": length_label(row), "pairs": row["compared"]}
        | {name: None if "win_rate" not in row else 100 * row[key]
           for name, key in (("win rate", "win_rate"), ("low", "win_rate_low"), ("high", "win_rate_high"))}
        for judge, rows_of in bins.items() for row in rows_of
    ]  # fmt: skip
    found = []
    if rows:
        found.append(
            Picture("Win rates of A", "By judge.", Drawing("win_rates", [rows]), table_of("Win rates of A, %", rows, 1))
        )
    if values:
        text = "By how long A's completion is relative to B's (the first three judges)."
        found.append(
            Picture(
                "Win rate by length", text, Drawing("by_length", [bins]), table_of("Win rate by length, %", values, 1)
            )
        )
    return found


def _pair_table(pairs: Pairs, result: Duel, names: tuple[str, str], i: int) -> Table:
    question = pairs.questions[i]
    rows = [["prompt", question.prompt], [f"A: {names[0]}", question.first], [f"B: {names[1]}", question.second]]
    if isinstance(question.row.get("reference"), str):
        rows.insert(1, ["reference", question.row["reference"]])
    for judge, comparison in result.comparisons.items():
        rows.append([judge, _outcome(comparison.outcomes()[i])])
    rows += [[person, _outcome(said[i])] for person, said in result.people.items()]
    return Table(f"{i + 1}. {question.prompt[:90]}", ["", "text or outcome"], rows)


def _outcome(outcome: float | None) -> str:
    if outcome is None:
        return "no verdict"
    return (
        "tie"
        if outcome == 0.5
        else ("A" if outcome > 0.5 else "B") + (" (one order)" if outcome in (0.25, 0.75) else "")
    )


def results_json(pairs: Pairs, result: Duel, names: tuple[str, str]) -> str:
    """All numbers as JSON."""
    head = {"a": names[0], "b": names[1], "pairs": len(pairs.questions), "prompts": len(set(pairs.prompts))}
    return json.dumps(head | {"unmatched": list(pairs.unmatched), "results": result.summary()}, indent=1)
