"""Which measures of an evaluation are shown, in which order, how, and what they mean."""

from collections.abc import Mapping
from typing import NamedTuple

from pipelines.report_page import Table, number


class Measure(NamedTuple):
    """One row of the summary: its key below `evaluation/{policy}/{decoding}/`, and how it is shown."""

    key: str
    label: str
    places: int
    factor: float
    meaning: str


MEASURES = (
    Measure("win_rate", "win rate, %", 1, 100, "How often the judge prefers it to the reference, ties one half."),
    Measure(
        "length_controlled_win_rate",
        "win rate at equal length, %",
        1,
        100,
        "The win rate of a logistic model of wins, read where both completions are equally long (AlpacaEval 2).",
    ),
    Measure("gold_reward", "gold reward", 2, 1, "The true reward of the embedded task; never trained on."),
    Measure("proxy_reward", "reward", 2, 1, "The reward that training used."),
    Measure("proxy_reward_variance", "reward, variance", 2, 1, "Over completions, with n − 1."),
    Measure("proxy_reward_p05", "reward, 5 % quantile", 2, 1, "One completion in twenty has less."),
    Measure("proxy_reward_p95", "reward, 95 % quantile", 2, 1, "One completion in twenty has more."),
    Measure("proxy_gold_correlation", "reward against gold, rank correlation", 2, 1, "Spearman's, over completions."),
    Measure("kl", "KL to SFT (k1), nats", 2, 1, "Mean log-ratio of fresh samples; of greedy ones that of one path."),
    Measure("kl_k3", "KL to SFT (k3), nats", 2, 1, "The estimate that is never negative, on the same samples."),
    Measure(
        "perplexity",
        "perplexity under SFT",
        2,
        1,
        "exp of minus the mean log-prob of all completion tokens. Ours: the paper's formula is not published.",
    ),
    Measure("length", "length, tokens", 1, 1, "With the end token."),
    Measure("finished", "finished, %", 1, 100, "Ended by the model itself, not cut off."),
    Measure("rouge1", "ROUGE-1", 3, 1, "F1 of words against the reference."),
    Measure("rouge2", "ROUGE-2", 3, 1, "F1 of word pairs."),
    Measure("rougeL", "ROUGE-L", 3, 1, "F1 of the longest common subsequence."),
    Measure(
        "distinct_1",
        "distinct-1",
        3,
        1,
        "Distinct words over all words of a completion. Ours: the paper's formula is not published.",
    ),
    Measure("distinct_2", "distinct-2", 3, 1, "The same of word pairs."),
    Measure(
        "distinct_1_at_equal_length",
        "distinct-1 at equal length",
        3,
        1,
        "Of the first words alone, equally many for every policy: the plain value falls with length.",
    ),
    Measure("distinct_2_at_equal_length", "distinct-2 at equal length", 3, 1, "The same of word pairs."),
    Measure("repetition_4", "repetition of 4-grams", 3, 1, "Share of four-word sequences that were said before."),
    Measure("self_bleu", "self-BLEU", 3, 1, "BLEU-4 of 64 completions against each other; low is diverse."),
)


def shown(summary: Mapping[str, float], prefix: str, key: str, places: int = 1, factor: float = 100) -> str:
    """A value with its interval, where it has one: "62.1 [59.0, 65.2]"."""
    value = summary.get(f"{prefix}/{key}")
    if value is None:
        return "–"
    low, high = summary.get(f"{prefix}/{key}_low"), summary.get(f"{prefix}/{key}_high")
    text = number(factor * value, places)
    if low is None or high is None:
        return text
    return f"{text} [{number(factor * low, places)}, {number(factor * high, places)}]"


def change(summary: Mapping[str, float], decoding: str, measure: Measure) -> str:
    """Policy less SFT; of win rates with the interval of the paired difference."""
    if measure.key == "win_rate":
        text = shown(summary, f"evaluation/difference/{decoding}", "win_rate")
        return f"+{text}" if summary.get(f"evaluation/difference/{decoding}/win_rate", -1.0) >= 0 else text
    after, before = (summary.get(f"evaluation/{name}/{decoding}/{measure.key}") for name in ("policy", "sft"))
    if after is None or before is None:
        return "–"
    value = measure.factor * (after - before)
    return ("+" if value >= 0 else "") + number(value, measure.places)


def measure_table(summary: Mapping[str, float]) -> Table:
    """SFT, policy and difference, sampled and greedy."""
    rows: list[list[str]] = []
    for decoding in ("sampled", "greedy"):
        cells = [
            [
                measure.label,
                *(
                    shown(summary, f"evaluation/{name}/{decoding}", measure.key, measure.places, measure.factor)
                    for name in ("sft", "policy")
                ),
                change(summary, decoding, measure),
            ]
            for measure in MEASURES
        ]
        kept = [row for row in cells if row[1:3] != ["–", "–"]]
        rows += [[decoding], *kept] if kept else []
        against = shown(summary, f"evaluation/policy_against_sft/{decoding}", "win_rate")
        rows += [["win rate against SFT, %", "50.0", against, "–"]] if against != "–" else []
    best = shown(summary, "evaluation/sft/best_of_n", "win_rate")
    rows += [["best of n"], ["win rate, %", best, "–", "–"]] if best != "–" else []
    return Table("SFT and policy on the test prompts, with 95 % intervals", ["", "SFT", "policy", "difference"], rows)
