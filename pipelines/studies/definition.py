"""What a study is: one YAML file, in conf/study or anywhere.

    load_definition("kl", "laptop")  →  Definition, or ConfigError

A profile (conf/study/_profiles.yaml, and the study's own `profiles`) sizes it: its base settings, its axes' values, its
seeds.
"""

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from pipelines.config_errors import ConfigError, listed, nearest
from rloo_core.settings import Count, CountOrZero, NonNegative, Positive, Settings


def shown(value: object) -> str:
    """A value as it is written in an override and in a cell."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


Cell = dict[str, Annotated[str, BeforeValidator(shown)]]
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
    values: dict[str, Names]
    at: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, given: Any) -> Any:
        """`setting: KEY` and a list of values stands for one override a value."""
        if not isinstance(given, dict) or "setting" not in given:
            return given
        key, values = given["setting"], given.get("values")
        if not isinstance(values, list) or not values:
            raise ValueError(f"with `setting: {key}` come `values`, a list such as [0.1, 0.3]")
        rest = {name: value for name, value in given.items() if name != "setting"}
        numbers = {shown(v): float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
        overrides = {shown(v): [f"{key}={shown(v)}"] for v in values}
        return {"label": key, "at": numbers, **rest, "values": overrides}


class Seeds(Settings):
    """Which seeds, and what a seed is: of `policy` stage and evaluation only, or of `everything` that is trained."""

    count: Count
    first: CountOrZero = 0
    vary: Literal["policy", "everything"]


class Measure(Settings):
    """One number a point.

    Args:
        label: In tables and figures.
        of: A metric: of the evaluation's or the policy stage's summary; or, with `take`, of the policy's curve.
        take: What is read off the curve. first, last, peak, mean; drop: from the peak to the end; at_kl: where the KL
            to the reference first reaches `kl`; first_reach: the x (see `over`) at which it first reaches `level`.
        kl: Nats; "common": the largest KL that all that are compared reach.
        level: For first_reach.
        over: What the curve runs over: step, or completions.
        share_of: An axis of numbers: the axis' number divided by the measure stands in its place.
        scale: The number is multiplied by it (100 for percent).
        digits: After the point, in tables.
    """

    label: str
    of: str
    take: Literal["first", "last", "peak", "mean", "drop", "at_kl", "first_reach"] | None = None
    kl: float | Literal["common"] = "common"
    level: float = 0.0
    over: Literal["step", "completions"] = "step"
    share_of: str | None = None
    scale: float = 1.0
    digits: CountOrZero = 2

    @property
    def is_common(self) -> bool:
        """Whether its value depends on what it is compared with."""
        return self.take == "at_kl" and self.kl == "common"


class Table(Settings):
    """One row a cell; with `against`, paired differences from that cell, corrected for their number (Holm)."""

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
    y: Names
    x: str = "step"
    label: str = ""
    where: Cell = Field(default_factory=dict)
    log_x: bool = False


class Term(Settings):
    """A cell with its weight in a claim's contrast."""

    weight: float
    cell: Cell


class Claim(Settings):
    """What is predicted: that a weighted sum of cells' measures is above zero.

    Args:
        says: In words, with where it was claimed.
        measure: Which.
        contrast: The sum, computed seed by seed.
        margin: Differences inside +- margin are too small to matter; fixed beforehand, in the measure's units.
    """

    says: str
    measure: str
    contrast: Annotated[tuple[Term, ...], Field(strict=False, min_length=1)]
    margin: NonNegative


class Definition(Settings):
    """A study, sized by a profile.

    Args:
        name: The file's.
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
    profile: str
    title: str
    question: str
    base: Names
    axes: dict[str, Axis]
    seeds: Seeds
    memory: Positive
    until: Literal["policy", "evaluation"] = "evaluation"
    measures: dict[str, Measure]
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


def study_names() -> list[str]:
    """The studies of conf/study."""
    names = (file.name for file in _folder().iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and name[0] != "_")


def profile_names() -> list[str]:
    """The profiles that every study has."""
    return list(_yaml(_folder() / "_profiles.yaml", "_profiles"))


def load_definition(study: str, profile: str, overrides: tuple[str, ...] = (), seeds: int | None = None) -> Definition:
    """Read a study.

    Args:
        study: A name of conf/study, or a YAML file.
        profile: Sizes it.
        overrides: Settings of every point that a person typed; they win over the study's base, not over its axes.
        seeds: Number of seeds, if not the profile's.

    Raises:
        ConfigError: If there is no such study or profile, or it says something impossible.
    """
    given = _read(study)
    own = given.pop("profiles", None) or {}
    common = _yaml(_folder() / "_profiles.yaml", "_profiles")
    if profile not in {**common, **own}:
        names = listed({**common, **own})
        raise ConfigError(f"--profile {profile}: the profiles are {names}{nearest(profile, {**common, **own})}")
    sized = _sized(given, common.get(profile) or {}, own.get(profile) or {})
    sized["base"] = one_experiment([*sized["base"], *overrides])
    if seeds is not None:
        sized["seeds"] = {**sized.get("seeds", {}), "count": seeds}
    named = {"measures": {}, **sized, "name": Path(study).stem, "profile": profile}
    whole = _validated({**named, "axes": given.get("axes") or {}}, study)
    _check(whole)
    return _without_missing_cells(_validated(named, study))


def _validated(values: dict[str, Any], study: str) -> Definition:
    try:
        return Definition(**values)
    except ValidationError as error:
        problems = [f"study {study}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError(problems) from None


def _without_missing_cells(study: Definition) -> Definition:
    """A profile with fewer values leaves out the claims, tables and figures that name the others."""

    def there(*cells: Mapping[str, str]) -> bool:
        return all(not _wrong_cell(study, "", cell) for cell in cells)

    return study.model_copy(
        update={
            "claims": tuple(each for each in study.claims if there(*(term.cell for term in each.contrast))),
            "tables": tuple(each for each in study.tables if there(each.where, each.against)),
            "figures": tuple(each for each in study.figures if there(each.where)),
        }
    )


def one_experiment(overrides: list[str]) -> list[str]:
    """Overrides where the last choice of each group counts, in the place of the first."""
    kept: dict[str, str] = {}
    for text in overrides:
        kept[text.partition("=")[0]] = text
    return list(kept.values())


def _sized(given: dict[str, Any], *profiles: Mapping[str, Any]) -> dict[str, Any]:
    """The study with what its profiles say: base is added to, axes and seeds are replaced key by key."""
    common, own = profiles
    base = [*(common.get("base") or []), *(given.get("base") or []), *(own.get("base") or [])]
    axes = {**(given.get("axes") or {}), **(own.get("axes") or {})}
    axes = {name: axis for name, axis in axes.items() if axis is not None}
    seeds = {**(common.get("seeds") or {}), **(given.get("seeds") or {}), **(own.get("seeds") or {})}
    rest = {k: v for each in profiles for k, v in each.items() if k not in ("base", "axes", "seeds", "about")}
    return {**rest, **given, **{k: v for k, v in rest.items() if k in own}, "base": base, "axes": axes, "seeds": seeds}


def _read(study: str) -> dict[str, Any]:
    if study in study_names():
        return _yaml(_folder() / f"{study}.yaml", study)
    path = Path(study).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _yaml(path, study)
    raise ConfigError(
        f"there is no study {study}; conf/study has {listed(study_names(), 'and')}{nearest(study, study_names())}; "
        f"a study of your own is a YAML file: rloo study my_study.yaml"
    )


def _yaml(path: Path | Traversable, name: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"study {name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"study {name}: a mapping is expected (title, question, axes, ...), not {content!r}")
    return content


def _folder() -> Traversable:
    return files("pipelines.conf") / "study"


def _check(study: Definition) -> None:
    """Refuse names that mean nothing, before any compute.

    Raises:
        ConfigError: With every problem.
    """
    problems = [
        f"axes.{name}: an axis needs at least one value" for name, axis in study.axes.items() if not axis.values
    ]
    places = [(f"tables.{i}", table.where) for i, table in enumerate(study.tables)]
    places += [(f"tables.{i}.against", table.against) for i, table in enumerate(study.tables)]
    places += [(f"figures.{i}", figure.where) for i, figure in enumerate(study.figures)]
    places += [(f"claims.{i}", term.cell) for i, claim in enumerate(study.claims) for term in claim.contrast]
    problems += [problem for place, cell in places for problem in _wrong_cell(study, place, cell)]
    used = [(f"tables.{i}", name) for i, table in enumerate(study.tables) for name in table.measures]
    used += [(f"claims.{i}", claim.measure) for i, claim in enumerate(study.claims)]
    used += [(f"figures.{i}", y) for i, f in enumerate(study.figures) if f.kind in ("axis", "bars") for y in f.y]
    problems += [f"{place}: there is no measure {name}{nearest(name, study.measures)}"
                 for place, name in used if name not in study.measures]  # fmt: skip
    problems += [f"figures.{i}.x: there is no axis {f.x}{nearest(f.x, study.axes)}"
                 for i, f in enumerate(study.figures) if f.kind == "axis" and f.x not in study.axes]  # fmt: skip
    numbers = {name for name, axis in study.axes.items() if axis.at}
    shares = {name: each.share_of for name, each in study.measures.items() if each.share_of}
    problems += [
        f"measures.{m}.share_of: {axis} is no axis of numbers" for m, axis in shares.items() if axis not in numbers
    ]
    if problems:
        raise ConfigError([f"study {study.name}: {problem}" for problem in problems])


def _wrong_cell(study: Definition, place: str, cell: Mapping[str, str]) -> list[str]:
    found = []
    for axis, value in cell.items():
        if axis not in study.axes:
            found.append(f"{place}: there is no axis {axis}; the axes are {listed(study.axes, 'and')}")
        elif value not in study.axes[axis].values:
            found.append(f"{place}: {axis} has no value {value}; it has {listed(study.axes[axis].values, 'and')}")
    return found
