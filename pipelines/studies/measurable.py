"""Studies of real data: nobody knows their completions' true reward, so what needs it is left out, and that is said."""

from collections.abc import Collection
from typing import Any

from pipelines.config_errors import ConfigError
from pipelines.studies.definition import Definition, FigureWish, Table
from pipelines.studies.metric_names import needs_gold

EMBEDDED = "synthetic"  # data.source of the one task whose true reward is known


def measurable(study: Definition, sources: Collection[str]) -> tuple[Definition, list[str]]:
    """The study without what none of its points can measure, and what a person must know of that beforehand.

    Args:
        study: What is asked for.
        sources: `data.source` of its points.

    Raises:
        ConfigError: If nothing would be left to measure.
    """
    gone = {name for name, measure in study.measures.items() if needs_gold(measure.of)}
    if EMBEDDED in sources:
        return study, []
    figures = [figure for wish in study.figures if (figure := _figure(wish, gone)) is not None]
    claims = [claim for claim in study.claims if claim.measure not in gone]
    left: dict[str, Any] = {
        "measures": {name: measure for name, measure in study.measures.items() if name not in gone},
        "tables": tuple(table for wish in study.tables if (table := _table(wish, gone)) is not None),
        "figures": tuple(figures),
        "claims": tuple(claims),
    }
    if gone and not left["measures"]:
        raise ConfigError(
            f"study {study.file}: all it measures is the true (gold) reward, which data.source="
            f"{', '.join(sorted(sources))} has not; measure validation/proxy_reward, or take data=synthetic"
        )
    sentences = [*_about_gold(study, gone, len(study.claims) - len(claims)), *_about_wins(study)]
    return study.model_copy(update=left | {"notes": (*study.notes, *sentences)}), sentences


def _about_gold(study: Definition, gone: Collection[str], claims: int) -> list[str]:
    if not gone:
        return []
    labels = "; ".join(measure.label for name, measure in study.measures.items() if name in gone)
    tested = f"; and {claims} claim{'s' if claims > 1 else ''} about it" if claims else ""
    return [f"Left out, since the true (gold) reward of real data is not known: {labels}{tested}"]


def _about_wins(study: Definition) -> list[str]:
    """The embedded task judges by its true reward; here, what was trained on judges itself."""
    if not any("win_rate" in measure.of for measure in study.measures.values()):
        return []
    return ["Win rates are by the reward that training maximises, for want of a better judge; see evaluation.judges"]


def _table(wish: Table, gone: Collection[str]) -> Table | None:
    names = tuple(name for name in wish.measures if name not in gone)
    return wish.model_copy(update={"measures": names}) if names else None


def _figure(wish: FigureWish, gone: Collection[str]) -> FigureWish | None:
    of_measures = wish.kind in ("axis", "bars")
    names = tuple(y for y in wish.y if not (y in gone if of_measures else needs_gold(y)))
    return wish.model_copy(update={"y": names}) if names else None
