"""The table at the end of a run: before → after, with 95 % intervals."""

from collections.abc import Callable, Mapping

from rich import box
from rich.table import Table
from rich.text import Text

Summary = Mapping[str, float]
MISSING = "–"


def final_table(summary: Summary) -> Table:
    """What RLOO changed; fits into 80 columns.

    Args:
        summary: The evaluation stage's summary, with keys `evaluation/{sft,policy}/{greedy,sampled}/<metric>`,
            `evaluation/difference/{greedy,sampled}/<metric>` and `evaluation/sft/best_of_n/<metric>`. Absent ones show
            as "–", rows without any value are left out. "best of n" is SFT's best sample by the reward model.

    Returns:
        A section a way of decoding, a row a metric; columns SFT, policy, difference.
    """
    count = f"{summary['evaluation/prompts']:.0f} " if "evaluation/prompts" in summary else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"SFT → policy on {count}held-out prompts (wins against references, 95 %)",
        title_justify="left",
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for column in ("", "SFT", "policy", "difference"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for decoding in ("sampled", "greedy"):
        rows = [(label, cells) for label, cells in _rows(summary, decoding) if any(cell != MISSING for cell in cells)]
        if rows:
            table.add_row(Text(decoding, style="bold"))
        for label, cells in rows:
            table.add_row(Text(f" {label}"), *map(Text, cells))
    best = _rate(summary, "evaluation/sft/best_of_n")
    if best != MISSING:
        table.add_row(Text("best of n", style="bold"))
        table.add_row(Text(" win rate, %"), Text(best))
    return table


def _rows(summary: Summary, decoding: str) -> list[tuple[str, list[str]]]:
    sft, policy = f"evaluation/sft/{decoding}", f"evaluation/policy/{decoding}"
    difference = _rate(summary, f"evaluation/difference/{decoding}", signed=True)
    rows = [("win rate, %", [_rate(summary, sft), _rate(summary, policy), difference])]
    formats: list[tuple[str, str, Callable[[float], str]]] = [
        ("gold reward", "gold_reward", "{:z.2f}".format),
        ("training reward", "proxy_reward", "{:z.2f}".format),
        # along the one greedy path the log-ratio is no estimate of the KL
        ("KL, nats" if decoding == "sampled" else "log-ratio", "kl", "{:z.2f}".format),
        ("length, tokens", "length", "{:z.1f}".format),
        ("finished, %", "finished", lambda value: f"{100 * value:.1f}"),
    ]
    for label, key, show in formats:
        before, after = summary.get(f"{sft}/{key}"), summary.get(f"{policy}/{key}")
        cells = [MISSING if value is None else with_minus(show(value)) for value in (before, after)]
        change = MISSING if before is None or after is None else _signed(show, after - before)
        rows.append((label, [*cells, change]))
    return rows


def _signed(show: Callable[[float], str], value: float) -> str:
    return ("+" if value >= 0 else "−") + show(abs(value))


def _rate(summary: Summary, prefix: str, signed: bool = False) -> str:
    """A win rate in percent with its interval: "62.1 [59.0, 65.2]"; differences are in points."""
    rate = summary.get(f"{prefix}/win_rate")
    if rate is None:
        return MISSING
    sign = "+" if signed else ""
    text = f"{100 * rate:{sign}.1f}"
    low, high = summary.get(f"{prefix}/win_rate_low"), summary.get(f"{prefix}/win_rate_high")
    if low is None or high is None:
        return with_minus(text)
    return with_minus(f"{text} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]")


def with_minus(text: str) -> str:
    """Numbers with a minus that is as wide as a plus."""
    return text.replace("-", "−")
