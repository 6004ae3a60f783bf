"""A report's figures as inline SVG; one that a run root has seen is not drawn again, which would take a second to load.

Black follows the reader's light or dark scheme.
"""

import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.code_digest import code_digests, core_packages
from pipelines.digests import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "rloo_core.evaluation.figures"
KEPT = 256  # pictures of a run root, some 30 kB each; the oldest go


@dataclass(frozen=True)
class Drawing:
    """A figure that need not be drawn yet: a function of `rloo_core.evaluation.figures` and what it is given."""

    function: str
    arguments: Sequence[Any]

    def figure(self) -> "Figure":
        """The figure, drawn now."""
        drawn: Figure = getattr(import_module(FIGURES), self.function)(*self.arguments)
        return drawn


def svg(drawing: Drawing, title: str, kept: Path | None = None) -> str:
    """A drawing as inline SVG.

    Args:
        drawing: What is drawn.
        title: Names inside the SVG begin with it, so it is the only one of its page.
        kept: Directory of pictures that were drawn before; a picture of the same values by the same code is read there.
    """
    return with_names_of(title, to_svg(drawing.figure()) if kept is None else _kept_svg(drawing, kept))


def _kept_svg(drawing: Drawing, kept: Path) -> str:
    file = kept / f"{_key(drawing)}.svg"
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = to_svg(drawing.figure())
        kept.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
        _drop_old(kept)
        return text


def to_svg(figure: "Figure") -> str:
    """A figure as inline SVG: black becomes the text's colour, its text stays text."""
    from matplotlib import rc_context

    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rloo"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = text.replace("#000000", "currentColor")
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return re.sub(r'(<svg[^>]*?) width="([^"]*)"', r'\1 width="\2" aria-hidden="true" focusable="false"', text, count=1)


def with_names_of(title: str, text: str) -> str:
    """An inline SVG whose names inside begin with a title, so that they are the only ones of their page."""
    prefix = re.sub(r"[^a-z0-9]+", "-", title.lower())
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    return re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text)


def _key(drawing: Drawing) -> str:
    content = [drawing.function, drawing.arguments, _code()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _code() -> list[Any]:
    """What decides the looks of given values."""
    here = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return [here, code_digests(FIGURES, core_packages()), version("matplotlib")]


def _drop_old(kept: Path) -> None:
    pictures = sorted(kept.glob("*.svg"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in pictures[KEPT:]:
        file.unlink(missing_ok=True)
