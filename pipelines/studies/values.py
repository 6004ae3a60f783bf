"""The numbers of a study's cells, seed by seed, and what is made of them: pairs and contrasts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pipelines.studies.definition import Cell, Claim, Definition, Measure
from pipelines.studies.measures import Result, common, value
from rloo_core.evaluation.across_seeds import Contrast, contrast


@dataclass
class Values:
    """What the points of a study measured.

    Args:
        study: Says which cells and measures there are.
        results: Of every point that finished.
    """

    study: Definition
    results: Sequence[Result]

    @cached_property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({result.seed for result in self.results})

    def of_cell(self, cell: Cell) -> Iterator[Result]:
        """The results of a cell, in the order of the seeds."""
        return iter(sorted((each for each in self.results if each.cell == cell), key=lambda each: each.seed))

    def values(self, name: str, cell: Cell, compared: Sequence[Cell] = ()) -> dict[int, float]:
        """A measure of a cell, by seed; seeds that have none are absent.

        Args:
            name: Of the measure.
            cell: Which.
            compared: For a measure at matched KL: the cells that must all reach that KL, for each seed by itself.
        """
        measure = self.study.measures[name]
        kls = self.common(compared or [cell]) if measure.is_common else {}
        divided = self._divided(measure, cell)
        found = {each.seed: value(measure, each, kls.get(each.seed), divided) for each in self.of_cell(cell)}
        return {seed: each for seed, each in found.items() if each is not None}

    def of_point(self, name: str, result: Result) -> float | None:
        """A measure of one point; None where it has none by itself."""
        measure = self.study.measures[name]
        return None if measure.is_common else value(measure, result, divided=self._divided(measure, result.cell))

    def _divided(self, measure: Measure, cell: Cell) -> float | None:
        return None if measure.share_of is None else self.study.axes[measure.share_of].at[cell[measure.share_of]]

    def common(self, cells: Sequence[Cell]) -> dict[int, float | None]:
        """For each seed the largest KL that all these cells reach; None where one of them has no result.

        A cell that has none for any seed is left out.
        """
        some = [cell for cell in cells if any(self.of_cell(cell))]
        found = {}
        for seed in self.seeds:
            there = [each for each in self.results if each.seed == seed and each.cell in some]
            found[seed] = common(there) if len(there) == len(some) else None
        return found

    def is_censored(self, name: str, cells: Sequence[Cell]) -> bool:
        """Whether a finished point of these cells never reached the level that is asked for.

        The mean of those that did would favour who seldom does.
        """
        if self.study.measures[name].take != "first_reach":
            return False
        return any(len(self.values(name, cell)) < len(list(self.of_cell(cell))) for cell in cells)

    def paired(self, name: str, cell: Cell, base: Cell) -> Contrast | None:
        """A cell less another, over the seeds that both have; None for fewer than two, or if it is censored."""
        if self.is_censored(name, [cell, base]):
            return None
        ours, theirs = (self.values(name, each, [cell, base]) for each in (cell, base))
        seeds = [seed for seed in ours if seed in theirs]
        return contrast([ours[seed] - theirs[seed] for seed in seeds]) if len(seeds) > 1 else None

    def claimed(self, claim: Claim) -> Contrast | None:
        """A claim's contrast, over the seeds that have all of it; None for fewer than two, or if it is censored."""
        if self.is_censored(claim.measure, self.claimed_cells(claim)):
            return None
        sums = list(self.sums(claim).values())
        return contrast(sums) if len(sums) > 1 else None

    def claimed_cells(self, claim: Claim) -> list[Cell]:
        """All cells that a claim is about."""
        return [cell for term in claim.contrast for cell in self.study.matching(term.cell)]

    def sums(self, claim: Claim) -> dict[int, float]:
        """A claim's weighted sum of cells less what it is to lie above, by seed.

        A term that names several cells stands for their mean.
        """
        cells = [self.study.matching(term.cell) for term in claim.contrast]
        every = self.claimed_cells(claim)
        terms = [[self.values(claim.measure, cell, every) for cell in found] for found in cells]
        whole = [seed for seed in self.seeds if all(seed in each for term in terms for each in term)]
        weights = [term.weight for term in claim.contrast]
        pairs = list(zip(weights, terms, strict=True))
        return {seed: sum(w * _mean(term, seed) for w, term in pairs) - claim.above for seed in whole}

    def name_of(self, cell: Cell, axes: Sequence[str]) -> str:
        """A cell in words: its values on these axes, numbers with the axis' label."""
        study = self.study.axes
        words = [
            f"{study[axis].label.partition(',')[0]} = {cell[axis]}" if study[axis].at else cell[axis] for axis in axes
        ]
        return ", ".join(words)

    def axes_of(self, cells: Sequence[Cell]) -> list[str]:
        """The axes that differ between these cells; all of them if none does."""
        return [axis for axis in self.study.axes if len({cell[axis] for cell in cells}) > 1] or list(self.study.axes)


def _mean(values: Sequence[Mapping[int, float]], seed: int) -> float:
    return sum(each[seed] for each in values) / len(values)
