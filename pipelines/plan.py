"""What would run, what would be reused, and why: decided from manifests alone, before anything heavy is imported.

make_plan(settings, store, selection)          the whole table, before a run
Planner(...).resolve("sft", {"data": manifest})  one stage, when the outputs it reads are known
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pipelines.config_errors import ConfigError, listed, nearest
from pipelines.config_validation import shown
from pipelines.fingerprint import Parts, own_parts, stage_fingerprint
from pipelines.store import Manifest, Store
from pipelines.unfinished import Unfinished, find_unfinished, without_code
from rloo_core.settings import ExperimentSettings
from rloo_core.stages import STAGES

Action = Literal["reuse", "run", "depends", "skip"]
SHOWN_DIFFERENCES = 3


@dataclass(frozen=True)
class Selection:
    """Which stages a person wants: all, `only` some, `from_stage` on, `until` one; `force` re-runs finished ones.

    With `accept_code`, outputs that differ from what would be made in their code alone are taken over, and
    checkpoints are gone on with.

    Raises:
        ConfigError: If a stage does not exist, or options contradict each other.
    """

    only: tuple[str, ...] = ()
    from_stage: str | None = None
    until: str | None = None
    force: tuple[str, ...] = field(default=())
    accept_code: bool = False

    def __post_init__(self) -> None:
        named = {"--only": self.only, "--from": (self.from_stage,), "--until": (self.until,), "--force": self.force}
        problems = [
            f"{option} {stage}: the stages are {listed(STAGES, 'and')}{nearest(stage, STAGES)}"
            for option, stages in named.items()
            for stage in stages
            if stage is not None and stage not in STAGES
        ]
        problems = problems or self._contradictions()
        if problems:
            raise ConfigError(problems)

    def _contradictions(self) -> list[str]:
        if self.only and (self.from_stage or self.until):
            return ["--only names the stages to run, so it does not go with --from or --until; use one or the other"]
        if not self.stages:
            return [f"--from {self.from_stage} --until {self.until}: {self.from_stage} comes after {self.until}"]
        left_out = [stage for stage in self.force if stage not in self.stages]
        return [f"--force {stage}, but {self} leaves it out; the selected stages are {listed(self.stages, 'and')}"
                for stage in left_out]  # fmt: skip

    @property
    def stages(self) -> tuple[str, ...]:
        """The selected stages, in order."""
        names = list(STAGES)
        first = names.index(self.from_stage) if self.from_stage else 0
        last = names.index(self.until) if self.until else len(names) - 1
        return tuple(name for name in names[first : last + 1] if not self.only or name in self.only)

    def __str__(self) -> str:
        options = [f"--only {stage}" for stage in self.only]
        options += [f"--from {self.from_stage}"] if self.from_stage else []
        options += [f"--until {self.until}"] if self.until else []
        return " ".join(options)


@dataclass(frozen=True)
class PlannedStage:
    """What happens to one stage, and why. `manifest` is there for `reuse`, `fingerprint` once inputs are known.

    `unfinished` is what other code has left, to go on with.
    """

    name: str
    action: Action
    reason: str
    fingerprint: str | None = None
    manifest: Manifest | None = None
    parts: Parts | None = field(default=None, repr=False)
    unfinished: Unfinished | None = field(default=None, repr=False)


class Planner:
    """Decides stage by stage, as the outputs of earlier stages become known.

    Args:
        settings: Of the whole run.
        store: Where finished stages are.
        selection: Which stages are wanted.
        overrides: What was typed, for the command that an error proposes.
        verify: Hash all outputs instead of trusting sizes and times of change.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        store: Store,
        selection: Selection | None = None,
        overrides: Sequence[str] = (),
        verify: bool = False,
    ) -> None:
        self.settings, self.store, self.overrides, self.verify = settings, store, overrides, verify
        self.selection = selection or Selection()
        self.needed = _with_inputs(self.selection.stages)

    def resolve(self, name: str, inputs: Mapping[str, Manifest], verify: bool = False) -> PlannedStage:
        """Decide about a stage whose inputs are all known.

        Args:
            name: The stage.
            inputs: Manifest of each stage it reads; needed unless the stage is skipped.
            verify: Hash its output if it is there; so does a planner that verifies everything.

        Returns:
            The stage, to `reuse`, `run` or `skip`.

        Raises:
            ConfigError: If the stage is needed and not selected, and its output is not there.
        """
        if name not in self.needed:
            return PlannedStage(name, "skip", f"left out by {self.selection}")
        stage = STAGES[name]
        fingerprint = stage_fingerprint(stage, self.settings, {n: inputs[n].digest for n in stage.inputs})
        manifest, problem = self.store.find(name, fingerprint.hex, verify or self.verify)
        if name in self.selection.force:
            return PlannedStage(name, "run", "forced", fingerprint.hex, parts=fingerprint.parts)
        if manifest is not None:
            return PlannedStage(name, "reuse", _finished(manifest), fingerprint.hex, manifest, fingerprint.parts)
        accepted = self._with_other_code(name, fingerprint.parts) if self.selection.accept_code else None
        if accepted is not None:
            changed = ", ".join(explain(accepted.parts, fingerprint.parts)[:SHOWN_DIFFERENCES])
            return PlannedStage(name, "reuse", f"accepted: {changed}", fingerprint.hex, accepted, fingerprint.parts)
        reason = problem or self._difference(name, fingerprint.parts) or "first run"
        self._refuse_unselected(name, reason)
        unfinished = find_unfinished(self.store, name, fingerprint.hex, fingerprint.parts)
        if unfinished is not None:
            changed = ", ".join(explain(unfinished.parts, fingerprint.parts)[:SHOWN_DIFFERENCES])
            goes_on = f"goes on from checkpoints, accepted: {changed}"
            anew = f"{changed}; starts anew (--accept-code would go on from its checkpoints)"
            reason = goes_on if self.selection.accept_code else anew
        taken_up = unfinished if self.selection.accept_code else None
        return PlannedStage(name, "run", reason, fingerprint.hex, parts=fingerprint.parts, unfinished=taken_up)

    def after(self, name: str, unknown: Collection[str]) -> PlannedStage:
        """Decide about a stage while some stages that it reads have yet to run.

        Raises:
            ConfigError: If the stage is needed and not selected: then nobody will make it.
        """
        if name not in self.needed:
            return PlannedStage(name, "skip", f"left out by {self.selection}")
        waiting = f"after {[n for n in STAGES[name].inputs if n in unknown][-1]}"
        if name in self.selection.force:
            return PlannedStage(name, "run", f"forced, {waiting}")
        self._refuse_unselected(name, waiting)
        changed = self._difference(name, own_parts(STAGES[name], self.settings), without_inputs=True)
        return PlannedStage(name, "depends", f"{waiting}; {changed}" if changed else waiting)

    def _refuse_unselected(self, name: str, reason: str) -> None:
        if name in self.selection.stages:
            return
        unselected = [stage for stage in STAGES if stage in self.needed and stage not in self.selection.stages]
        command = shlex.join(["rloo", "run", *self.overrides, "--until", unselected[-1]])
        why = "it never ran" if reason == "first run" else reason
        raise ConfigError(
            f"{self.selection} needs the output of {name}, which is not there for these settings ({why}); "
            f"make it with: {command}"
        )

    def _with_other_code(self, name: str, parts: Parts) -> Manifest | None:
        """The newest whole output that differs from these parts in its code alone."""
        for earlier in self.store.manifests(name):
            same = without_code(earlier.parts) == without_code(parts)
            if same and self.store.find(name, earlier.fingerprint, verify=True)[0] is not None:
                return earlier
        return None

    def _difference(self, name: str, parts: Parts, without_inputs: bool = False) -> str:
        """How the parts differ from the most similar earlier result of that stage; "" if there is none."""
        differences = [
            [line for line in explain(earlier.parts, parts) if not (without_inputs and line.startswith("input "))]
            for earlier in self.store.manifests(name)
        ]
        closest = min(differences, key=len, default=[])
        more = len(closest) - SHOWN_DIFFERENCES
        return ", ".join(closest[:SHOWN_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")


def make_plan(
    settings: ExperimentSettings,
    store: Store,
    selection: Selection | None = None,
    overrides: Sequence[str] = (),
    verify: bool = False,
) -> list[PlannedStage]:
    """The whole plan, in the order of the stages.

    Raises:
        ConfigError: If a stage that is needed and not selected has no output.
    """
    planner = Planner(settings, store, selection, overrides, verify)
    plan: dict[str, PlannedStage] = {}
    for name, stage in STAGES.items():
        manifests = {n: m for n in stage.inputs if (m := plan[n].manifest) is not None}
        unknown = [n for n in stage.inputs if n not in manifests]
        plan[name] = planner.after(name, unknown) if unknown else planner.resolve(name, manifests)
    return list(plan.values())


def explain(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The differences of two fingerprints' parts, settings first, each in a few words."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    order = ("settings", "files", "inputs", "code", "libraries", "machine")
    names.sort(key=lambda name: (order.index(name.partition("/")[0]), name))
    return [_in_words(name, before, after) for name in names]


def _in_words(part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    kind, _, name = part.partition("/")
    verb = "changed" if part in before and part in after else "added" if part in after else "removed"
    if kind == "inputs":
        return f"input {verb}: {name}"
    if kind == "files":
        return f"{'data' if name.startswith('data/') else 'model'} file {verb}: {name.partition('/')[2]}"
    if kind == "code":
        return f"code {verb}: {name.replace('.', '/')}.py"
    return f"{name} {_shown(before, part)} → {_shown(after, part)}"


def _shown(parts: Mapping[str, Any], part: str) -> str:
    return shown(parts[part]) if part in parts else "(none)"


def _finished(manifest: Manifest) -> str:
    return f"finished {manifest.created[:16].replace('T', ' ')} UTC"


def _with_inputs(stages: Collection[str]) -> set[str]:
    """The stages and all that they read, directly or not."""
    needed = set(stages)
    for stage in reversed(STAGES.values()):
        if stage.name in needed:
            needed |= set(stage.inputs)
    return needed
