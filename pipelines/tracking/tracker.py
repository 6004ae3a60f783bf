"""The parent run of a pipeline run, and its stages."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mlflow.entities import ViewType

from pipelines.evidence import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    SETTINGS,
    Evidence,
    Place,
    RunState,
    new_record_name,
    record_directory,
)
from pipelines.processes import is_dead
from pipelines.store import LOGS, Manifest, Store
from pipelines.tracking.connection import Connection, first_line
from pipelines.tracking.mirror import Mirror
from pipelines.tracking.names import cut_values
from pipelines.tracking.stage_run import StageRun
from rloo_core.settings import ExperimentSettings

# Seconds that the end of a run waits for a server that is away; the next start sends what is left.
PATIENCE = {FINISHED: 240.0, FAILED: 60.0, KILLED: 5.0}


class Tracker:
    """Writes one pipeline run: its record below the run root, and MLflow's copy of it.

    Args:
        settings: Of the whole run.
        connection: MLflow.
        say: Is told what a person should know.
    """

    def __init__(self, settings: ExperimentSettings, connection: Connection, say: Callable[[str], None]) -> None:
        self.settings, self.connection, self._say = settings, connection, say
        self.store = Store(settings.paths.root)
        self.mirror = Mirror(connection, self.store, say)
        self.evidence: Evidence | None = None

    @classmethod
    def open(cls, settings: ExperimentSettings, warn: Callable[[str], None], say: Callable[[str], None]) -> "Tracker":
        """Connect, create the experiment, end the runs that dead processes left behind, and send what they could not.

        Raises:
            TrackingError: If MLflow cannot be opened; nothing has been computed yet.
        """
        connection = Connection(settings.tracking, Path(settings.paths.root).absolute(), warn)
        tracker = cls(settings, connection, say)
        _reconcile(connection)
        tracker.mirror.start()
        return tracker

    @property
    def run_id(self) -> str:
        """MLflow's id of the parent run; "" until MLflow has given one."""
        return self._state.run_id

    @property
    def record(self) -> str:
        """Name of the run's record, by which `rloo runs` and `--resume` know it."""
        assert self.evidence is not None, "start() comes first"
        return self.evidence.directory.name

    @property
    def _state(self) -> RunState:
        assert self.evidence is not None, "start() comes first"
        return self.evidence.state

    def start(
        self,
        config: str,
        typed: Mapping[str, Any],
        plan: Sequence[Mapping[str, str]],
        resume: Evidence | None = None,
        place: Place | None = None,
    ) -> None:
        """Open the parent run.

        Args:
            config: The resolved config, YAML.
            typed: What a person typed: overrides, selection, and Prefect's flow run.
            plan: One row a stage: stage, action, reason.
            resume: The record of a run that is to go on.
            place: Its place in a study, if it has one.
        """
        if resume is not None:
            self.evidence = self.mirror.evidence(resume.directory) or resume
            self.evidence.take_up(place.parent if place else "")
            self._state.notes = []
        else:
            root = Path(self.settings.paths.root)
            name = place.record if place else new_record_name()
            self.evidence = Evidence(root, record_directory(root, name), RunState(parent=place.parent if place else ""))
        state = self._state
        state.name, state.results = place.name if place else self.settings.name, {}
        state.typed = dict(typed)
        wanted = dict(typed.get("selection", {})) | {"force": (), "accept_code": False}
        state.candidate = self.settings.tracking.champion and not any(wanted.values())  # a full run
        tags = {"overrides": " ".join(typed.get("overrides", ())) or "(none)", "seed": str(self.settings.seed)}
        state.tags |= {**tags, "record": self.record, **_git_sha(), **(place.tags if place else {})}
        values = self.settings.model_dump(mode="json")
        for name, length in cut_values(values).items():
            self.connection.warn(
                f"{name} has {length} characters; MLflow's parameters show its beginning, "
                f"the run's config.yaml all of it"
            )
        self.evidence.write(SETTINGS, json.dumps(values, indent=1))
        self.evidence.write("files/config.yaml", config)
        self.evidence.write("files/plan.json", json.dumps(list(plan), indent=2))
        self.evidence.write("files/plan.md", _markdown(plan))
        self.evidence.begin()
        self.mirror.watch(self.evidence)

    def tag(self, key: str, value: str) -> None:
        """Tag the parent run."""
        self._state.tags[key] = value
        self._changed()

    def began(self, work: Path) -> bool:
        """Whether what lies in a stage's work directory is of this very run, which goes on."""
        evidence = self.mirror.evidence(work / LOGS)
        return evidence is not None and evidence.state.parent == self._state.key

    @contextmanager
    def moving(self, work: Path, fingerprint: str) -> Iterator[Callable[[Path], None]]:
        """While a stage's work goes to another fingerprint, nobody copies it; `moved(work)` says where it is then."""
        evidence = self.mirror.evidence(work / LOGS)

        def moved(place: Path) -> None:
            if evidence is not None:
                evidence.moved(place / LOGS)
                evidence.state.fingerprint = fingerprint
                evidence.begin()

        with evidence.lock if evidence is not None else nullcontext():
            yield moved

    def start_stage(
        self, stage: str, fingerprint: str, settings: Mapping[str, object], work: Path, inputs: Mapping[str, str]
    ) -> StageRun:
        """Open the run of a stage, or open it again where a killed attempt left its evidence.

        Args:
            stage: Name of the stage.
            fingerprint: What identifies its result.
            settings: The stage's validated settings.
            work: The stage's work directory.
            inputs: Fingerprint of each stage that is read.
        """
        directory = work / LOGS
        earlier = self.mirror.evidence(directory)
        if earlier is not None:
            earlier.take_up(self._state.key)
            evidence = earlier
        else:
            state = RunState(name=stage, stage=stage, fingerprint=fingerprint, parent=self._state.key)
            evidence = Evidence(self.store.root, directory, state)
        evidence.state.inputs = dict(inputs)
        evidence.write(SETTINGS, json.dumps(settings, indent=2, default=str))
        evidence.begin()
        run = StageRun(evidence, self.mirror, resumed=earlier is not None)
        self._note(stage, "run", fingerprint)
        return run

    def reused(self, manifest: Manifest, how: str = "reused") -> None:
        """Link the run that made a reused output; if it is gone from MLflow, it is brought back.

        Args:
            manifest: Of the output.
            how: What became of the stage: "reused".
        """
        evidence = self.mirror.evidence(self.store.path(manifest.stage, manifest.fingerprint) / LOGS)
        if evidence is not None and not evidence.is_others and not self.mirror.has(evidence):
            if evidence.state.is_open:  # its process died between publishing and this
                evidence.close(FINISHED)
            self.mirror.watch(evidence, reused=True)
        self._note(manifest.stage, how, manifest.fingerprint)

    def result(self, values: Mapping[str, float]) -> None:
        """Numbers of the whole run, so that runs can be compared in MLflow's list."""
        self._state.results = {name: float(value) for name, value in values.items()}
        self._changed()

    def finish(self, status: str) -> None:
        """End the parent run as FINISHED, FAILED or KILLED, and hand over to MLflow what it has not got yet."""
        assert self.evidence is not None
        self.evidence.close(status)
        left = self.mirror.stop(PATIENCE[status])
        if left:
            self.connection.warn(
                f"MLflow has not got everything of {left} {'run' if left == 1 else 'runs'}; it is kept in "
                f"{self.store.root} and sent at the next start there (or by `rloo sync`)"
            )

    def _note(self, stage: str, action: str, fingerprint: str) -> None:
        self._state.notes.append({"stage": stage, "action": action, "fingerprint": fingerprint})
        self._changed()

    def _changed(self) -> None:
        assert self.evidence is not None
        self.evidence.save()
        self.mirror.wake()


def deliver(settings: ExperimentSettings, warn: Callable[[str], None], say: Callable[[str], None]) -> int:
    """Send what earlier runs could not; end what dead processes left RUNNING.

    Returns:
        How many runs are still not complete in MLflow.

    Raises:
        TrackingError: If MLflow cannot be opened.
    """
    return Tracker.open(settings, warn, say).mirror.stop(PATIENCE[FAILED])


def _reconcile(connection: Connection) -> None:
    """End RUNNING runs whose process is dead on this machine as KILLED; the mirror knows better for some of them."""
    client = connection.client
    try:
        running = client.search_runs(
            [connection.experiment_id], f"attributes.status = '{RUNNING}'", ViewType.ACTIVE_ONLY, max_results=1000
        )
        for run in running:
            if is_dead(run.data.tags):
                client.set_terminated(run.info.run_id, KILLED)
    except Exception as error:
        connection.warn(f"MLflow was not searched for runs of dead processes: {first_line(error)}")


def _git_sha() -> dict[str, str]:
    """The commit of the checkout this code lies in, marked where files differ from it; nothing for a wheel."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return {}
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git.commit": done.stdout.strip()}


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return ""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(str(row.get(column, "")).replace("|", "\\|") for column in columns) + " |" for row in rows
    ]
    return "\n".join(lines) + "\n"
