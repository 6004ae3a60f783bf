"""What a study is: the content of its YAML file, sized by a profile. `loading` reads it."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from pipelines.config_errors import listed
from pipelines.config_overrides import key_of
from pipelines.config_validation import shown
from rloo_core.settings import Count, CountOrZero, NonNegative, Positive, Settings

LONGEST = 100  # characters of a name, which stands in tables, legends, tags and file names


def _one_line(name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > LONGEST:
        raise ValueError(f"a name has 1 to {LONGEST} characters, all on one line")
    return name


def _key(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,59}", name):
        raise ValueError(
            "a key has up to 60 letters (a to z), digits, spaces and _ - . since it names tags or metrics in MLflow; "
            "`label` may have any"
        )
    return name


Key = Annotated[str, AfterValidator(_key)]
ValueName = Annotated[str, BeforeValidator(shown), AfterValidator(_one_line)]  # YAML reads some as numbers or booleans
Cell = dict[str, ValueName]
"""Value's name of each axis, by axis; a cell of the table. Axes that are left out may have any value."""

Names = Annotated[tuple[str, ...], Field(strict=False)]


class Axis(Settings):
    """What differs between points.

    Args:
        label: In tables and figures.
        values: Overrides of each value, by the value's name.
        at: Number of each value, where the axis is one of numbers; by name.
    """

    label: str
    values: Annotated[dict[ValueName, Names], Field(min_length=1)]
    at: dict[ValueName, FiniteFloat] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        """`setting: KEY` and a list of values stands for one override a value."""
        if not isinstance(given, dict) or "setting" not in given:
            return given
        key, values = given["setting"], given.get("values")
        if not isinstance(key, str):
            raise ValueError(f"`setting: {shown(key)}` names no setting; write one such as algorithm.kl_coef")
        if not isinstance(values, list) or not values:
            raise ValueError(f"with `setting: {key}` come `values`, a list such as [0.1, 0.3]")
        twice = [name for name, many in Counter(map(shown, values)).items() if many > 1]
        if twice:
            raise ValueError(f"`values` has {listed(twice, 'and')} more than once")
        rest = {name: value for name, value in given.items() if name != "setting"}
        numbers = {shown(v): float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
        at = numbers if len(numbers) == len(values) else {}
        return {"label": key, "at": at, **rest, "values": {shown(v): [f"{key}={shown(v)}"] for v in values}}

    @model_validator(mode="after")
    def _a_number_for_each(self) -> Self:
        if self.at and set(self.at) != set(self.values):
            raise ValueError(f"`at` has {listed(self.at, 'and')}, but it must have each of the values, or none")
        return self

    @property
    def fixes(self) -> set[str]:
        """The settings that every one of its values sets."""
        return set.intersection(*({key_of(text) for text in overrides} for overrides in self.values.values()))


class Seeds(Settings):
    """Which seeds, and what a seed is of.

    Attributes:
        count: Seeds.
        first: The first of them; others follow.
        vary: The `policy` stage and evaluation only, the `reward_model`, too, or `everything` that is trained.
        fixed: Seed of what does not vary; None is the first.
    """

    count: Count
    first: CountOrZero = 0
    vary: Literal["policy", "reward_model", "everything"]
    fixed: CountOrZero | None = None

    @property
    def all(self) -> range:
        """Every seed."""
        return range(self.first, self.first + self.count)

    def __str__(self) -> str:
        return f"{self.all[0]} to {self.all[-1]}" if self.count > 1 else str(self.first)


def _nats(kl: Any) -> Any:
    if kl == "common" or (isinstance(kl, int | float) and not isinstance(kl, bool) and 0 < kl < math.inf):
        return kl
    raise ValueError(f"{shown(kl)}, but it must be common, or a number of nats above 0")


class Measure(Settings):
    """One number a point.

    Args:
        label: In tables and figures.
        of: A metric: of the evaluation's or the policy stage's summary; or, with `take`, of the policy's curve.
        take: What is read off the curve. first, last, peak, mean; rise: from first to last; drop: from the peak to the
            end; at_kl: where the KL to the reference first reaches `kl`; first_reach: the x (see `over`) at which it
            first reaches `level`.
        kl: Nats; "common": the largest KL that all that are compared reach.
        level: For first_reach.
        over: What the curve runs over: step, or completions.
        share_of: An axis of numbers: the axis' number divided by the measure stands in its place.
        scale: The number is multiplied by it (100 for percent).
        digits: After the point, in tables.
    """

    label: str
    of: Annotated[str, Field(min_length=1)]
    take: Literal["first", "last", "peak", "mean", "rise", "drop", "at_kl", "first_reach"] | None = None
    kl: Annotated[float | Literal["common"], BeforeValidator(_nats)] = "common"
    level: FiniteFloat | None = None
    over: Literal["step", "completions"] = "step"
    share_of: str | None = None
    scale: FiniteFloat = 1.0
    digits: Annotated[CountOrZero, Field(le=10)] = 2

    @model_validator(mode="after")
    def _each_key_has_an_effect(self) -> Self:
        if self.take == "first_reach" and self.level is None:
            raise ValueError("take: first_reach needs a `level` to be reached")
        needs = {"level": "first_reach", "over": "first_reach", "kl": "at_kl"}
        for key in sorted(self.model_fields_set & needs.keys()):
            if self.take != needs[key]:
                raise ValueError(f"`{key}` goes with take: {needs[key]} only")
        return self

    @property
    def is_common(self) -> bool:
        """Whether its value depends on what it is compared with."""
        return self.take == "at_kl" and self.kl == "common"


class Table(Settings):
    """One row a cell.

    Args:
        caption: Above it.
        measures: Its columns.
        where: Only these cells.
        against: Differences instead, paired by seed and corrected for their number (Holm): each cell less the one that
            has these values, and on all other axes its own.
    """

    caption: str
    measures: Names
    where: Cell = Field(default_factory=dict)
    against: Cell = Field(default_factory=dict)


class FigureWish(Settings):
    """A figure.

    Args:
        kind: curves (of the training, one a cell), axis (a measure along an axis), against_kl, bars.
        caption: Below it.
        y: Metric (curves, against_kl) or measure (axis, bars); several for against_kl.
        x: Axis, for axis; step or completions, for curves.
        label: Of the y axis, for metrics.
        where: Only these cells.
        log_x: Whether the x axis is logarithmic.
    """

    kind: Literal["curves", "axis", "against_kl", "bars"]
    caption: str
    y: Annotated[Names, Field(min_length=1)]
    x: str = "step"
    label: str = ""
    where: Cell = Field(default_factory=dict)
    log_x: bool = False


class Term(Settings):
    """A cell with its weight in a claim's contrast."""

    weight: FiniteFloat
    cell: Cell


class Claim(Settings):
    """What is predicted: that a weighted sum of cells' measures lies above a number.

    Args:
        says: In words, with where it was claimed.
        measure: Which.
        contrast: The sum, computed seed by seed.
        above: The number, which is taken off the sum. Below 0: nothing is lost, up to so much.
        margin: Differences inside +- margin are too small to matter; fixed beforehand, in the measure's units.
    """

    says: str
    measure: str
    contrast: Annotated[tuple[Term, ...], Field(strict=False, min_length=1)]
    above: FiniteFloat = 0.0
    margin: NonNegative


class Definition(Settings):
    """A study, sized by a profile.

    Args:
        name: The file's, without its ending.
        file: What a person types: the name of a study of conf/study, or a path.
        profile: Which size.
        title: Above tables.
        question: What it is to answer.
        base: Overrides of every point.
        axes: What differs between points.
        seeds: Which, and of what.
        memory: GiB that a point may take, from which the number of processes follows.
        until: The last stage.
        measures: By name.
        tables: In the order of the page.
        figures: The same.
        claims: What was claimed elsewhere, and is tested here.
        notes: Sentences below the results.
    """

    name: str
    file: str
    profile: str
    title: Annotated[str, Field(min_length=1)]
    question: str
    base: Names
    axes: dict[Key, Axis]
    seeds: Seeds
    memory: Positive
    until: Literal["policy", "evaluation"] = "evaluation"
    measures: dict[Key, Measure]
    tables: Annotated[tuple[Table, ...], Field(strict=False)] = ()
    figures: Annotated[tuple[FigureWish, ...], Field(strict=False)] = ()
    claims: Annotated[tuple[Claim, ...], Field(strict=False)] = ()
    notes: Names = ()

    @property
    def cells(self) -> list[Cell]:
        """Every combination of the axes' values."""
        cells: list[Cell] = [{}]
        for axis, each in self.axes.items():
            cells = [{**cell, axis: value} for cell in cells for value in each.values]
        return cells

    def matching(self, wanted: Mapping[str, str]) -> list[Cell]:
        """The cells that agree with `wanted`, in order."""
        return [cell for cell in self.cells if all(cell[axis] == value for axis, value in wanted.items())]
