"""A report as one HTML file that needs nothing else: no script, no font, no request leaves it.

A page is sections; a section is text, a figure with its values in a table, tables, samples. Figures become inline SVG.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipelines.pictures import Drawing, svg
from pipelines.report import with_minus

TEMPLATE = "report.html.j2"
A_NUMBER = re.compile(r"[\[<]?\s*[+−-]?[\d.]")
STRONG = 3.0  # nats at which a token's colour is at its strongest
ALPHA = 0.42  # of the strongest colour: text on it stays readable in both schemes


@dataclass(frozen=True)
class Table:
    """Rows under a header; cells are text, the first column heads its row."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def words(self) -> list[bool]:
        """Of each column, whether it is one of words."""
        return [is_of_words(self.rows, place) for place in range(len(self.header))]


@dataclass(frozen=True)
class Picture:
    """A figure, what it shows in words, and its values."""

    title: str
    description: str
    drawing: Drawing
    values: Table


@dataclass(frozen=True)
class Token:
    """A piece of a completion and its log-ratio to the reference, nats."""

    text: str
    log_ratio: float

    @property
    def style(self) -> str:
        """Orange where the policy finds it likelier than the reference, blue where less likely."""
        strength = ALPHA * min(1.0, abs(self.log_ratio) / STRONG)
        colour, line = ("213 94 0", "solid") if self.log_ratio > 0 else ("0 114 178", "dotted")
        border = f";border-bottom:2px {line} currentColor" if strength >= ALPHA / 3 else ""
        return f"background:rgb({colour} / {strength:.2f}){border}" if strength >= 0.02 else ""


@dataclass(frozen=True)
class Completion:
    """One policy's answer to a sample's prompt."""

    label: str
    tokens: Sequence[Token]
    measures: str


@dataclass(frozen=True)
class Sample:
    """A prompt with everything that was written on it."""

    prompt: str
    reference: str | None
    completions: Sequence[Completion]


@dataclass(frozen=True)
class Section:
    """A part of a page, under a heading that the page's navigation names."""

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    folded: Sequence[Table] = ()
    samples: Sequence[Sample] = ()

    @property
    def anchor(self) -> str:
        """Name of the heading as a link's target."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    lead: Sequence[str]
    sections: Sequence[Section] = field(default_factory=tuple)


def render(page: Page, pictures: Path | None = None) -> str:
    """The page as HTML; all text is escaped.

    Args:
        page: What it says.
        pictures: Where pictures that were drawn before are kept, if anywhere.
    """
    return environment().get_template(TEMPLATE).render(page=page, svg=partial(svg, kept=pictures))


@cache
def environment() -> Environment:
    """Templates of this folder; what they are given is escaped."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def number(value: float | None, places: int = 2) -> str:
    """A number for a table; "–" where there is none."""
    return "–" if value is None else with_minus(f"{value:.{places}f}")


def is_of_words(rows: Sequence[Sequence[str]], place: int) -> bool:
    """Whether a column is set flush left: its cells are words, or it heads the rows."""
    cells = [row[place] for row in rows if len(row) > place and row[place] not in ("", "–")]
    return place == 0 or (bool(cells) and not any(map(A_NUMBER.match, cells)))


def table_of(caption: str, rows: Sequence[dict[str, Any]], places: int = 3) -> Table:
    """A table of dictionaries with the same keys."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    return Table(caption, header, [[_cell(row.get(key), places) for key in header] for row in rows])


def _cell(value: Any, places: int) -> str:
    if isinstance(value, float):
        return number(value, 0 if value.is_integer() and abs(value) >= 1 else places)
    return "–" if value is None else str(value)
