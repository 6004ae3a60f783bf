"""The report of a run, from what its stages left in the store; it can be made again at any time."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.evidence import FINISHED, Evidence
from pipelines.pictures import Drawing
from pipelines.records import Record
from pipelines.report_measures import MEASURES, measure_table, shown
from pipelines.report_page import Completion, Page, Picture, Sample, Section, Table, Token, number, render, table_of
from pipelines.store import Manifest, Store
from rloo_core.evaluation.figure_rows import histogram_edges, length_label, win_rate_rows

LOG = logging.getLogger("rloo")
REPORT = "report.html"
PICTURES = "cache/pictures"  # below the run root
CURVE_ROWS = 40  # of a curve's table; a longer curve is thinned
STAGE_WORDS = {"run": "computed", "reused": "reused"}


def run_report(record: Record, store: Store, status: str | None = None) -> Path:
    """Write the report of a run beside its other evidence.

    Args:
        record: The run.
        store: Its run root.
        status: How it ended, where that is not written down yet.

    Returns:
        Where it is: `records/<run>/files/report.html`.
    """
    record.evidence.write(
        f"files/{REPORT}", render(run_page(record, store, status or record.status), store.root / PICTURES)
    )
    return record.evidence.directory / "files" / REPORT


def report_at_the_end(evidence: Evidence, store: Store, warn: Callable[[str], None]) -> None:
    """The report of a run that has evaluated; a report that cannot be made is told, and fails nothing."""
    if not any(note["stage"] == "evaluation" for note in evidence.state.notes):
        return
    try:
        run_report(Record(evidence.directory.name, evidence), store, FINISHED)
    except Exception as error:
        LOG.exception("the report could not be made")
        warn(f"the report could not be made: {error}; `rloo report` tries again")


def run_page(record: Record, store: Store, status: str) -> Page:
    """The page; sections of stages that the run does not have are absent."""
    stages = _stages(record, store)
    summary = dict(stages["evaluation"][0].summary) if "evaluation" in stages else {}
    state = record.state
    lead = [
        f"Run {record.name}, {status.lower()}; seed {state.tags.get('seed', '?')}, commit "
        f"{state.tags.get('git.commit', 'unknown')[:12]}. Typed: rloo run {' '.join(record.overrides)}".rstrip()
    ]
    lead += [_verdict(summary)] if "evaluation/policy/sampled/win_rate" in summary else []
    sections: list[Section | None] = [
        _summary_section(summary),
        _training_section(stages),
        _comparison_section(summary, stages),
        _distribution_section(stages),
        _reward_model_section(summary, stages),
        _judges_section(summary),
        _samples_section(stages),
        _data_section(stages),
        _lineage_section(record, stages),
        _config_section(stages),
    ]
    return Page(f"{state.name}: SFT → policy", lead, [section for section in sections if section is not None])


Stages = Mapping[str, tuple[Manifest, Path]]


def _stages(record: Record, store: Store) -> dict[str, tuple[Manifest, Path]]:
    """Manifest and directory of each stage of the run that is in the store."""
    found = {}
    for note in record.state.notes:
        manifest = store.manifest(note["stage"], note["fingerprint"])
        if manifest is not None:
            found[note["stage"]] = (manifest, store.path(note["stage"], note["fingerprint"]))
    return found


def _verdict(summary: Mapping[str, float]) -> str:
    rate, prompts = shown(summary, "evaluation/policy/sampled", "win_rate"), summary["evaluation/prompts"]
    before = shown(summary, "evaluation/sft/sampled", "win_rate")
    return (
        f"On {prompts:.0f} test prompts the policy wins {rate} % against the references (SFT: {before} %), sampled; "
        f"intervals are 95 %, from a bootstrap over prompts. Nothing here was used to choose a checkpoint."
    )


def _summary_section(summary: Mapping[str, float]) -> Section | None:
    if not summary:
        return None
    notes = [[measure.label, measure.meaning] for measure in MEASURES]
    return Section(
        "Summary",
        tables=[measure_table(summary)],
        folded=[Table("What the measures are", ["measure", "meaning"], notes)],
    )


def _training_section(stages: Stages) -> Section | None:
    if "policy" not in stages:
        return None
    history = _lines(stages["policy"][1] / "metrics.jsonl")
    names = ("reward/mean", "kl/mean", "validation/proxy_reward", "validation/gold_reward", "validation/kl")
    pictures = [
        Picture(
            "Reward and KL over training",
            "Reward of the completions sampled at each step, and of held-out prompts; KL to the SFT model, summed over "
            "a completion.",
            Drawing("reward_and_kl", [history]),
            _curve("Reward and KL by step", history, names),
        )
    ]
    evaluated = [row for row in history if "validation/kl" in row]
    if len(evaluated) >= 2:
        pictures.append(
            Picture(
                "Reward against KL",
                "Held-out prompts, from the first evaluation to the last: what was paid in KL for the reward. Proxy "
                "reward that rises while gold reward falls is over-optimisation.",
                Drawing("reward_against_kl", [history]),
                _curve("Reward against KL", evaluated, names[2:]),
            )
        )
    return Section("Training", pictures=pictures)


def _comparison_section(summary: Mapping[str, float], stages: Stages) -> Section | None:
    rows = win_rate_rows(summary)
    if not rows:
        return None
    details = _json(stages["evaluation"][1] / "details.json")
    pictures = [
        Picture(
            "Win rates",
            "Against the references unless it says against SFT. At equal length: a logistic model of the part that "
            "length plays in a win, read at no difference.",
            Drawing("win_rates", [rows]),
            table_of("Win rates, %", rows, 1),
        )
    ]
    titles = {"sft/sampled": "SFT", "policy/sampled": "policy", "policy_against_sft/sampled": "policy against SFT"}
    compared = details["comparisons"][details["judge"]]
    bins = {
        label: compared[name]["by_length"] for name, label in titles.items() if compared.get(name, {}).get("by_length")
    }
    values = [
        {"comparison": label, "length": length_label(row), "pairs": row["compared"]}
        | {end: None if "win_rate" not in row else 100 * row[key]
           for end, key in (("win rate", "win_rate"), ("low", "win_rate_low"), ("high", "win_rate_high"))}
        for label, rows_of in bins.items() for row in rows_of
    ]  # fmt: skip
    if values:
        pictures.append(
            Picture(
                "Win rate by length",
                "Sampled completions, by how long they are relative to what they are compared with.",
                Drawing("by_length", [bins]),
                table_of("Win rate by length, %", values, 1),
            )
        )
    judge = {"gold": "the gold reward", "reward": "the reward"}.get(details["judge"], details["judge"])
    return Section("Comparisons", [f"A win is the higher score by {judge}; ties count one half."], pictures=pictures)


def _distribution_section(stages: Stages) -> Section | None:
    if "evaluation" not in stages:
        return None
    rows = _lines(stages["evaluation"][1] / "completions.jsonl")
    kinds = (
        ("length", "Length", "length, tokens"),
        ("proxy_reward", "Reward", "reward"),
        ("gold_reward", "Gold reward", "gold reward"),
    )
    pictures = [
        Picture(
            f"{title} of sampled completions",
            "Test prompts, one completion each.",
            Drawing("distributions", [rows, measure, label]),
            _histogram_table(rows, measure, f"{title}, prompts by bin"),
        )
        for measure, title, label in kinds
        if rows and f"sft_sampled_{measure}" in rows[0]
    ]
    return Section("Distributions", pictures=pictures) if pictures else None


def _reward_model_section(summary: Mapping[str, float], stages: Stages) -> Section | None:
    prefix = "evaluation/reward_model/"
    measures = {name.removeprefix(prefix): value for name, value in summary.items() if name.startswith(prefix)}
    if not measures:
        return None
    curve = _json(stages["evaluation"][1] / "details.json")["calibration"]
    picture = Picture(
        "Calibration of the reward model",
        f"Expected calibration error {measures['calibration_error']:.3f}. On the dotted line it is as "
        f"often right as it is sure.",
        Drawing("calibration", [curve]),
        table_of("Calibration", curve),
    )
    rows = [[name.replace("_", " "), number(value, 0 if name == "pairs" else 3)] for name, value in measures.items()]
    return Section(
        "Reward model",
        ["On held-out preference pairs. Chance is an accuracy of 0.5, a log loss of 0.693, a Brier score of 0.25."],
        tables=[Table("Accuracy, calibration, length bias", ["", "value"], rows)],
        pictures=[picture],
    )


def _judges_section(summary: Mapping[str, float]) -> Section | None:
    prefix = "evaluation/judges/"
    values = {name.removeprefix(prefix): value for name, value in summary.items() if name.startswith(prefix)}
    if not values:
        return None
    places = {True: 0, False: 3}
    rows = [
        [name.replace("/", ": ", 1), number(value, places[value >= 10 or name.endswith(("judged", "unparsed"))])]
        for name, value in values.items()
    ]
    text = "Each pair was judged in both orders; unreadable verdicts are counted apart and in no rate."
    return Section("Further judges", [text], tables=[Table("Every further judge", ["", "value"], rows)])


def _samples_section(stages: Stages) -> Section | None:
    if "evaluation" not in stages or not (stages["evaluation"][1] / "samples.json").exists():
        return None
    samples = [
        Sample(
            row["prompt"],
            row["reference"],
            [_completion(arm, values) for arm, values in row["completions"].items()],
        )
        for row in _json(stages["evaluation"][1] / "samples.json")
    ]
    return Section("Samples", samples=samples)


def _completion(arm: str, values: Mapping[str, Any]) -> Completion:
    tokens = [Token(text, ratio) for text, ratio in zip(values["tokens"], values["log_ratios"], strict=True)]
    named = (("proxy_reward", "reward"), ("gold_reward", "gold reward"), ("length", "tokens"))
    parts = [f"{label} {number(values[key], 0 if key == 'length' else 2)}" for key, label in named if key in values]
    policy, mode = arm.split("/")
    ratio = number(sum(values["log_ratios"]))
    return Completion(
        f"{'SFT' if policy == 'sft' else policy}, {mode}", tokens, ", ".join([*parts, f"log-ratio {ratio}"])
    )


def _data_section(stages: Stages) -> Section | None:
    if "data" not in stages:
        return None
    directory = stages["data"][1]
    tables = _json(directory / "dataset.json")["tables"]
    rows = [[name, str(about["rows"]), about["sha256"][:12]] for name, about in tables.items()]
    dropped = _json(directory / "dropped_rows.json")
    drops = table_of("Dropped rows", dropped) if dropped else Table("Dropped rows", ["", "rows"], [["none", "0"]])
    return Section("Data", tables=[Table("Tables", ["table", "rows", "SHA-256"], rows), drops])


def _lineage_section(record: Record, stages: Stages) -> Section | None:
    if not stages:
        return None
    actions = {note["stage"]: (note["action"], note.get("reason", "–")) for note in record.state.notes}
    rows = []
    for name, (manifest, _) in stages.items():
        action, reason = actions[name]
        inputs = ", ".join(f"{stage} {made['fingerprint'][:8]}" for stage, made in manifest.inputs.items())
        made_at, seconds = manifest.created[:19].replace("T", " "), f"{manifest.duration:.1f}"
        hashes = (manifest.fingerprint[:12], manifest.digest[:12])
        rows.append([name, STAGE_WORDS.get(action, action), reason, *hashes, inputs or "–", made_at, seconds])
    header = [
        "stage",
        "in this run",
        "why",
        "fingerprint",
        "digest of outputs",
        "made from",
        "made at (UTC)",
        "seconds",
    ]
    versions = next(iter(stages.values()))[0].versions
    software = Table("Software", ["library", "version"], [[name, text] for name, text in versions.items()])
    return Section("Lineage and timings", tables=[Table("Stages", header, rows)], folded=[software])


def _config_section(stages: Stages) -> Section | None:
    folded = []
    for name, (manifest, _) in stages.items():
        settings = {k.removeprefix("settings/"): v for k, v in manifest.parts.items() if k.startswith("settings/")}
        rows = [[key, json.dumps(value, ensure_ascii=False)] for key, value in settings.items()]
        folded.append(Table(f"Settings of {name}", ["setting", "value"], rows))
    text = "Every setting that decides the stage's numbers."
    return Section("Config", [text], folded=folded) if folded else None


def _curve(caption: str, history: Sequence[Mapping[str, float]], names: Sequence[str]) -> Table:
    kept = [name for name in names if any(name in row for row in history)]
    rows = [row for row in history if any(name in row for name in kept)]
    every = max(1, -(-len(rows) // CURVE_ROWS))
    chosen = [row for i, row in enumerate(rows) if i % every == 0 or i == len(rows) - 1]
    cells = [[f"{row['step']:.0f}", *(number(row.get(name), 3) for name in kept)] for row in chosen]
    return Table(caption + (f" (every {every} steps)" if every > 1 else ""), ["step", *kept], cells)


def _histogram_table(rows: Sequence[Mapping[str, Any]], measure: str, caption: str) -> Table:
    columns = [[row[f"{name}_sampled_{measure}"] for row in rows] for name in ("sft", "policy")]
    edges = histogram_edges(columns[0] + columns[1])
    counts = [np.histogram(column, edges)[0] for column in columns]
    cells = [
        [f"{number(low, 1)} to {number(high, 1)}", str(before), str(after)]
        for low, high, before, after in zip(edges, edges[1:], *counts, strict=False)
    ]
    return Table(caption, ["bin", "SFT", "policy"], cells)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
