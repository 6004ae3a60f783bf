"""What a study has found, as HTML, as Markdown and for the terminal; all from one description."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pipelines.pictures import to_svg, with_names_of
from pipelines.report_page import Table as HtmlTable
from pipelines.report_page import environment, is_of_words, number
from rloo_core.evaluation.across_seeds import Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType
    from rich.table import Table as RichTable

TEMPLATE = "study.html.j2"
WIDTH = 100  # columns of the terminal, at most
MARKS: Mapping[Verdict, str] = {"supported": "●", "not supported": "✕", "undecided": "□"}  # as in the figure
STYLES: Mapping[Verdict, str] = {"supported": "green", "not supported": "red", "undecided": "blue"}
CLAIM_COLUMNS = (
    "claim", "verdict", "difference", "95 % interval", "corrected p", "p", "effect", "seeds", "margin", "measure",
)  # fmt: skip
CLAIM_NOTE = (
    "Supported: corrected p < 0.05 with the predicted sign. Not supported: corrected p < 0.05 with the opposite sign, "
    "or the interval within ± the margin, which was fixed beforehand. Else undecided. A claim with failed points is "
    "not tested, since seeds are not lost at random. p: two-sided paired t test over seeds; corrected: Holm, over the "
    "tested claims of the study. Effect: difference / standard deviation over seeds. "
    "At matched KL: for each seed the largest KL that all cells of the claim reach."
)


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column heads its row. A row of one cell is a heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class ClaimRow:
    """A claim and what the seeds say of it; None: too few seeds to tell, or (`corrected_p`) not tested."""

    text: str
    measure: str
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    corrected_p: float | None
    seeds: int
    effect: float | None
    margin: float
    verdict: Verdict

    @property
    def marked(self) -> str:
        """The verdict with its mark: told apart without colour."""
        return f"{MARKS[self.verdict]} {self.verdict}"

    def cells(self) -> list[str]:
        """As text, in the order of `CLAIM_COLUMNS`; differences to two digits of their uncertainty."""
        places = _places(self)
        ends = [_signed(end, places) for end in (self.low, self.high)]
        interval = "–" if "–" in ends else f"[{', '.join(ends)}]"
        difference, effect = _signed(self.difference, places), _signed(self.effect, 1)
        tested = [difference, interval, _p(self.corrected_p), _p(self.p), effect]
        return [self.text, self.marked, *tested, str(self.seeds), f"{self.margin:g}", self.measure]


@dataclass(frozen=True)
class StudyPage:
    """Everything that is shown of a study.

    Args:
        title: Of the study.
        question: What it asks, in a sentence.
        facts: Name and value: seeds, steps, what a seed varies, how many points were computed.
        tables: Results.
        claims: Each with its verdict.
        figures: Caption and figure.
        notes: Sentences.
        command: What computes the study again.
        failed: Points without a result, and why.
    """

    title: str
    question: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    claims: Sequence[ClaimRow] = ()
    figures: Sequence[tuple[str, "Figure"]] = ()
    notes: Sequence[str] = ()
    command: str = ""
    failed: Sequence[tuple[str, str]] = ()

    @cached_property
    def drawn(self) -> list[str]:
        """The figures as inline SVG, drawn once for the study's page and for those of all studies."""
        return [to_svg(figure) for _, figure in self.figures]


class _Shown(NamedTuple):
    """A study in an HTML page: its name there and its heading's level."""

    study: StudyPage
    anchor: str
    level: int

    @property
    def summary(self) -> str:
        return verdicts_in_words(self.study)

    @property
    def claims(self) -> HtmlTable:
        return HtmlTable(
            "Differences over seeds, with 95 % t intervals",
            CLAIM_COLUMNS,
            [claim.cells() for claim in self.study.claims],
        )

    @property
    def tables(self) -> Iterator[tuple[HtmlTable, str]]:
        return ((HtmlTable(t.caption, t.columns, t.rows), t.note) for t in self.study.tables)

    @property
    def failed(self) -> HtmlTable:
        return HtmlTable("Points without a result", ("point", "reason"), self.study.failed)

    @property
    def pictures(self) -> Iterator[tuple[str, str]]:
        """Caption and inline SVG; names inside are unique in the page."""
        return (
            (caption, with_names_of(f"{self.anchor} figure {place}", drawn))
            for place, ((caption, _), drawn) in enumerate(zip(self.study.figures, self.study.drawn, strict=True), 1)
        )


def page(study: StudyPage) -> str:
    """A study as one HTML file that asks for nothing else; all text is escaped."""
    return _rendered(study.title, [_Shown(study, "study", 1)], None)


def index(pages: Sequence[StudyPage]) -> str:
    """All studies in one HTML file, with all verdicts at its top."""
    rows: list[list[str]] = []
    for study in pages:
        rows += [[study.title], *(claim.cells() for claim in study.claims)] if study.claims else []
    shown = [_Shown(study, f"study-{place}", 2) for place, study in enumerate(pages, start=1)]
    return _rendered("Studies", shown, HtmlTable("The claims of all studies", CLAIM_COLUMNS, rows))


def verdicts_in_words(study: StudyPage) -> str:
    """E.g. "4 claims: 2 supported, 1 not supported, 1 undecided"."""
    if not study.claims:
        return "No claim is tested."
    counts = Counter(claim.verdict for claim in study.claims)
    parts = ", ".join(f"{counts[name]} {name}" for name in MARKS if counts[name])
    return f"{len(study.claims)} claim{'s' if len(study.claims) > 1 else ''}: {parts}."


def markdown(study: StudyPage) -> str:
    """A study as GitHub's Markdown, without its figures, from a third-level heading on."""
    parts = [f"### {_plain(study.title)}", _plain(study.question), f"**{_plain(verdicts_in_words(study))}**"]
    if study.claims:
        parts += [_pipes(CLAIM_COLUMNS, [claim.cells() for claim in study.claims]), _plain(CLAIM_NOTE)]
    for table in study.tables:
        parts += [f"**{_plain(table.caption)}**", _pipes(table.columns, table.rows), _plain(table.note)]
    if study.failed:
        parts += ["**Points without a result**", _pipes(("point", "reason"), study.failed)]
    parts.append("\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in study.facts))
    parts.append("\n".join(f"- {_plain(note)}" for note in study.notes))
    parts.append(f"```bash\n{study.command.replace('```', '')}\n```" if study.command else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def console(study: StudyPage) -> "RenderableType":
    """A study for the terminal, at most 100 columns wide: print it with rich."""
    from rich.console import Group
    from rich.constrain import Constrain
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = [Text(study.title, style="bold"), Text(study.question)]
    parts += [Text(f"{name}: {value}", style="dim") for name, value in study.facts]
    parts.append(Text())
    parts += [_grid(table.caption, table.columns, table.rows, table.note) for table in study.tables]
    for claim in study.claims:
        parts.append(Text(claim.marked, style=STYLES[claim.verdict]).append(f"  {claim.text}", style="default"))
        parts.append(Padding(Text(_in_words(claim), style="dim"), (0, 0, 0, 4)))
    parts += [Text(verdicts_in_words(study), style="bold"), Text()]
    parts += [Text(note) for note in study.notes]
    parts += [Text(f"failed: {point}: {reason}", style="red") for point, reason in study.failed]
    return Constrain(Group(*parts), WIDTH)


def _rendered(title: str, shown: Sequence[_Shown], verdicts: HtmlTable | None) -> str:
    template = environment().get_template(TEMPLATE)
    return template.render(title=title, shown=shown, verdicts=verdicts, claim_note=CLAIM_NOTE)


def _grid(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> "RichTable":
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(
        title=Text(caption), title_justify="left", title_style="bold", caption=Text(note) if note else None,
        caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    for place, name in enumerate(columns):
        grid.add_column(Text(name), justify="left" if is_of_words(rows, place) else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def _pipes(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        [_plain(name) for name in columns],
        ["---" if is_of_words(rows, place) else "---:" for place in range(len(columns))],
    ]
    for row in rows:
        cells = [f"**{_plain(row[0])}**"] if len(row) == 1 else [_plain(cell) for cell in row]
        lines.append(cells + [""] * (len(columns) - len(cells)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    flat = re.sub(r"&(?=[#\w]+;)", "&amp;", " ".join(text.split()))
    flat = re.sub(r"<(?=\S)", "&lt;", flat)
    flat = re.sub(r"([\\`*|~])", r"\\\1", flat)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", flat).replace("](", "]\\(")


def _in_words(claim: ClaimRow) -> str:
    _, _, difference, interval, corrected, _, effect, seeds, margin, measure = claim.cells()
    if claim.low is None:
        return f"{measure}: too few seeds to tell ({seeds}); difference {difference}"
    if claim.corrected_p is None:
        return f"{measure} {difference} {interval}, not tested since points failed, effect {effect}, {seeds} seeds"
    sign = "" if corrected.startswith("<") else "= "
    return (
        f"{measure} {difference} {interval}, corrected p {sign}{corrected}, effect {effect}, {seeds} seeds, ±{margin}"
    )


def _places(claim: ClaimRow) -> int:
    """Decimal places that show two digits of the interval's half width, or of the difference where there is none."""
    width = (claim.high - claim.low) / 2 if claim.low is not None and claim.high is not None else 0.0
    size = width or abs(claim.difference or 0.0)
    return min(6, max(0, 1 - math.floor(math.log10(size)))) if size > 0 else 2


def _signed(value: float | None, places: int) -> str:
    return number(value, places) if value is None or value <= 0 else f"+{number(value, places)}"


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
