"""The pipeline runs of a run root: what was typed, what became of it. Read without MLflow, in no time."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipelines.config_errors import ConfigError, nearest
from pipelines.evidence import FINISHED, KILLED, RECORDS, RUNNING, SETTINGS, Evidence, RunState
from pipelines.plan import Selection
from pipelines.processes import is_dead
from pipelines.store import Store
from rloo_core.settings import ExperimentSettings


@dataclass(frozen=True)
class Record:
    """One pipeline run."""

    name: str
    evidence: Evidence

    @property
    def state(self) -> RunState:
        """What `run.json` says."""
        return self.evidence.state

    @property
    def status(self) -> str:
        """RUNNING, FINISHED, FAILED or KILLED; KILLED where the process has died without a word."""
        dead = self.state.status == RUNNING and is_dead(self.state.process)
        return KILLED if dead else self.state.status

    @property
    def overrides(self) -> list[str]:
        """What was typed."""
        return list(self.state.typed.get("overrides", []))

    @property
    def is_study(self) -> bool:
        """Whether it is a study, whose points are runs of their own."""
        return "study" in self.state.typed

    @property
    def command(self) -> str:
        """What computes a study, or what is left of it."""
        return study_command(self.state.typed)

    @property
    def selection(self) -> Selection:
        """Which stages were wanted."""
        typed = self.state.typed.get("selection", {})
        only, force = tuple(typed.get("only", ())), tuple(typed.get("force", ()))
        return Selection(only, typed.get("from_stage"), typed.get("until"), force, typed.get("accept_code", False))

    def settings(self, root: Path) -> ExperimentSettings:
        """The settings of the run, wherever the run root is now.

        Raises:
            ConfigError: If they are no settings of this version.
        """
        try:
            values = json.loads(self.evidence.read(SETTINGS))
            values["paths"]["root"] = str(root)
            return ExperimentSettings(**values)
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise ConfigError(
                f"the settings of {self.name} are not those of this version of rloo ({str(error).splitlines()[0]}); "
                f"start anew: rloo run {' '.join(self.overrides)}"
            ) from None


def study_command(typed: Mapping[str, Any]) -> str:
    """What is typed for a study, from its parameters."""
    seeds = ["--seeds", str(typed["seeds"])] if typed.get("seeds") is not None else []
    return shlex.join(["rloo", "study", typed["study"], "--profile", typed["profile"], *seeds, *typed["overrides"]])


def records(root: Path) -> list[Record]:
    """All pipeline runs of a run root, the newest first."""
    return sorted(_records(root), key=lambda record: record.state.started, reverse=True)


def _records(root: Path) -> Iterator[Record]:
    for directory in (root / RECORDS).glob("*"):
        evidence = Evidence.load(root, directory)
        if evidence is not None:
            yield Record(directory.name, evidence)


def find_record(root: Path, name: str) -> Record:
    """The run of that name: its own, its MLflow run id, or the beginning of one of them.

    `last` is the newest that is no study's point.

    Raises:
        ConfigError: If there is none, or several.
    """
    every = records(root)
    whole = [record for record in every if not record.state.parent]
    if name == "last" and whole:
        return whole[0]
    found = [record for record in every if record.name.startswith(name) or record.state.run_id.startswith(name)]
    exact = [record for record in found if name in (record.name, record.state.run_id)]
    if len(exact or found) == 1:
        return (exact or found)[0]
    names = [record.name for record in (found or every)]
    if found:
        raise ConfigError(f"{name} may be {', '.join(names)}; write more of it")
    raise ConfigError(f"there is no run {name} in {root}{nearest(name, names)}; `rloo runs` lists them")


def to_resume(root: Path, name: str) -> Record:
    """The run to go on with.

    Raises:
        ConfigError: If there is no such run, it is still running, or it has nothing left to do.
    """
    record = find_record(root, name)
    _refuse_studies(root, record)
    if record.status == RUNNING:
        process = record.state.process
        raise ConfigError(
            f"{record.name} is still running (process {process.get('process.pid')} on {process.get('process.host')}); "
            f"stop it first, or wait for it"
        )
    if record.status == FINISHED:
        raise ConfigError(f"{record.name} has finished; run it again with: rloo run {' '.join(record.overrides)}")
    return record


def _refuse_studies(root: Path, record: Record) -> None:
    keys = (record.state.key, record.state.parent)
    study = next((each for each in records(root) if each.is_study and each.state.key in keys), None)
    if study is not None:
        what = "a study" if record.is_study else f"a point of the study {study.name}"
        raise ConfigError(
            f"{record.name} is {what}, which goes on with what is left when it is started: {study.command}"
        )


def of_flow_run(root: Path, flow_run: str) -> Record | None:
    """The record of an earlier attempt at a Prefect flow run, which is retried."""
    if not flow_run:
        return None
    return next((record for record in records(root) if record.state.typed.get("flow_run") == flow_run), None)


def left_of(record: Record, store: Store) -> Selection:
    """The selection of a run that goes on: what it forced and has made anew since its start is not forced again."""
    started = datetime.fromtimestamp(record.state.started / 1000, UTC)
    typed = record.selection
    notes = {note["stage"]: note["fingerprint"] for note in record.state.notes}
    made = {stage: store.manifest(stage, fingerprint) for stage, fingerprint in notes.items()}
    done = {stage for stage, m in made.items() if m is not None and datetime.fromisoformat(m.created) > started}
    return replace(typed, force=tuple(stage for stage in typed.force if stage not in done))
