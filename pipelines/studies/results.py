"""From the points' results to the study's page, verdicts and files."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipelines.store import Store
from pipelines.studies.conduct import Conduct
from pipelines.studies.definition import Cell, Claim, Definition
from pipelines.studies.drawings import drawing
from pipelines.studies.measures import read_result
from pipelines.studies.page import ClaimRow, StudyPage, Table
from pipelines.studies.points import point_name
from pipelines.studies.tables import table
from pipelines.studies.values import Values
from rloo_core.evaluation.across_seeds import Contrast, holm, verdict
from rloo_core.evaluation.figures.studies import ForestRow, forest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_A_SEED = {
    "everything": "varies all that is trained (SFT, reward model, policy) and what is sampled; data are the same",
    "reward_model": "varies the reward model, the policy stage and what is sampled; the SFT model is the same",
    "policy": "varies the policy stage and what is sampled; SFT and reward model are the same for all seeds",
}


@dataclass
class Results:
    """What a study has found.

    Args:
        found: The numbers of every point that finished.
        failed: Points that did not, with the reason.
        command: What makes it again.
    """

    found: Values
    failed: Sequence[tuple[str, str]]
    command: str

    @classmethod
    def of(cls, conduct: Conduct, store: Store, command: str) -> "Results":
        """Read them from the store."""
        returned = conduct.returned
        results = [
            read_result(store, returned[point.name].fingerprints, point.cell, point.seed,
                        point.settings.algorithm.rollout_batch_size)
            for point in conduct.points if not returned[point.name].error
        ]  # fmt: skip
        failed = [(name, each.error) for name, each in returned.items() if each.error]
        return cls(Values(conduct.study, results), failed, command)

    @property
    def study(self) -> Definition:
        """What was studied."""
        return self.found.study

    @cached_property
    def page(self) -> StudyPage:
        """Everything that is shown."""
        study = self.study
        return StudyPage(
            title=study.title,
            question=study.question,
            facts=self._facts(),
            tables=self.tables,
            claims=self.claims,
            figures=list(self.figures.values()),
            notes=[*study.notes, *self._unmeasured()],
            command=self.command,
            failed=self.failed,
        )

    @cached_property
    def tables(self) -> list[Table]:
        """The tables that the study wishes for, in the order of the page."""
        return [table(self.found, wish) for wish in self.study.tables]

    @cached_property
    def figures(self) -> "dict[str, tuple[str, Figure]]":
        """Caption and figure, by the name of the file."""
        figures = {}
        for place, wish in enumerate(self.study.figures, start=1):
            figure = drawing(self.found, wish)
            if figure is not None:
                figures[f"{place:02d}_{wish.kind}"] = (wish.caption, figure)
        for place, label in enumerate(dict.fromkeys(row.measure for row in self.claims), start=1):
            rows = [_in_forest(row) for row in self.claims if row.measure == label and row.difference is not None]
            if rows:
                caption = f"Claims about {label}: difference, 95 % interval, verdict; the grey block is the margin."
                figures[f"claims_{place}"] = (caption, forest(rows, f"difference, {label}"))
        return figures

    @cached_property
    def claims(self) -> list[ClaimRow]:
        """Each claim with its verdict; p-values are corrected for the number of claims that are tested.

        Seeds are not lost at random: what diverges was the worst. So where a point of a claim failed, the others'
        numbers are shown and decide nothing. Whatever they are, nothing is claimed, so the correction leaves it out.
        """
        contrasts = [(claim, self.found.claimed(claim), self._lost(claim)) for claim in self.study.claims]
        corrected = iter(holm([found.p for _, found, lost in contrasts if found is not None and not lost]))
        return [
            self._claim(claim, found, lost, None if found is None or lost else next(corrected))
            for claim, found, lost in contrasts
        ]

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """For MLflow: every point with all its measures, the claims, and the page's tables as table_1, table_2, ..."""
        points: list[dict[str, Any]] = [
            {**result.cell, "seed": result.seed} | {n: self.found.of_point(n, result) for n in self.study.measures}
            for result in self.found.results
        ]
        tables = {"points": points, "claims": [asdict(row) for row in self.claims]}
        tables |= {f"table_{place}": _by_column(each) for place, each in enumerate(self.tables, start=1)}
        return {name: rows for name, rows in tables.items() if rows}

    def numbers(self) -> dict[str, float]:
        """For MLflow's list of runs: counts, and the mean of each measure in each cell."""
        means = {}
        for name in self.study.measures:
            for cell in self.study.cells:
                values = list(self.found.values(name, cell, self.study.cells).values())
                if values:
                    means[f"{name}/{_slug(cell)}"] = sum(values) / len(values)
        return {"points": float(len(self.found.results)), "failed": float(len(self.failed)), **means}

    def json(self) -> str:
        """All of it for programs."""
        study = self.study.model_dump(mode="json")
        failed = [list(each) for each in self.failed]
        return json.dumps(
            {"study": study, "command": self.command, "failed": failed, **self.rows()}, indent=1, allow_nan=False
        )

    def _facts(self) -> list[tuple[str, str]]:
        study = self.study
        thin = " (curves show the two seeds as thin lines instead)" if study.seeds.count == 2 else ""
        facts = [
            ("profile", study.profile),
            ("settings", " ".join(study.base)),
            ("points", f"{len(self.found.results)} finished, {len(self.failed)} failed"),
            ("seeds", f"{study.seeds} ({study.seeds.count}); a seed {OF_A_SEED[study.seeds.vary]}"),
            ("intervals", f"95 % t intervals over seeds{thin}; differences are paired by seed, with the same prompts"),
        ]
        if study.claims:
            tested = sum(row.corrected_p is not None for row in self.claims)
            of = f"their number, {tested}" if tested == len(self.claims) else f"the {tested} that could be tested"
            facts.append(("claims", f"two-sided paired t tests, corrected for {of} (Holm)"))
        return facts

    def _unmeasured(self) -> Iterator[str]:
        """Metrics that no point has, though others than these have them."""
        if not self.found.results:
            return
        summaries = set().union(*(result.summary for result in self.found.results))
        curves = set().union(*(row for result in self.found.results for row in result.curve))
        measures = self.study.measures.values()
        drawn = [y for figure in self.study.figures if figure.kind in ("curves", "against_kl") for y in figure.y]
        wanted = [(m.of, summaries if m.take is None else curves) for m in measures] + [(y, curves) for y in drawn]
        for metric, there in dict.fromkeys((metric, frozenset(there)) for metric, there in wanted):
            if metric not in there:
                yield f"No point has measured {metric}"

    def _lost(self, claim: Claim) -> int:
        """How many points of a claim's cells failed."""
        cells, seeds = self.found.claimed_cells(claim), self.study.seeds.all
        return len({point_name(cell, seed) for cell in cells for seed in seeds} & {name for name, _ in self.failed})

    def _claim(self, claim: Claim, found: Contrast | None, lost: int, corrected: float | None) -> ClaimRow:
        label = self.study.measures[claim.measure].label
        says = f"{claim.says} ({lost} point{'s' if lost > 1 else ''} failed)" if lost else claim.says
        if found is None:
            sums = list(self.found.sums(claim).values())
            only = sums[0] if len(sums) == 1 else None
            return ClaimRow(says, label, only, None, None, None, None, len(sums), None, claim.margin, "undecided")
        return ClaimRow(
            text=says,
            measure=label,
            difference=found.difference,
            low=found.low,
            high=found.high,
            p=found.p,
            corrected_p=corrected,
            seeds=found.seeds,
            effect=found.effect,
            margin=claim.margin,
            verdict="undecided" if corrected is None else verdict(found, corrected, 1, claim.margin),
        )


def _by_column(shown: Table) -> list[dict[str, Any]]:
    """The rows of a table, by column; columns of one label are told apart by their place."""
    columns = [
        f"{label} ({place})" if shown.columns.count(label) > 1 else label
        for place, label in enumerate(shown.columns, start=1)
    ]
    return [dict(zip(columns, row, strict=True)) for row in shown.rows]


def _in_forest(row: ClaimRow) -> ForestRow:
    assert row.difference is not None
    return ForestRow(row.text, row.difference, row.low, row.high, row.margin, row.verdict)


def _slug(cell: Cell) -> str:
    return "/".join(f"{axis}={each}" for axis, each in cell.items()) or "all"
