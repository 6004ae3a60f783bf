"""Makes one MLflow run look like its evidence on disk; may be stopped anywhere and done again."""

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow import MlflowClient
from mlflow.entities import LoggedModelInput, Param, Run, RunTag, ViewType

from pipelines.digests import locked
from pipelines.evidence import FINISHED, JOURNAL, SETTINGS, Evidence
from pipelines.tracking.cards import EVALUATION, evaluation_section, model_card
from pipelines.tracking.champion import crown, score_of
from pipelines.tracking.connection import Connection, first_line, is_refusal
from pipelines.tracking.datasets import dataset_inputs
from pipelines.tracking.journal import Line, read_journal
from pipelines.tracking.metrics import MetricQueue
from pipelines.tracking.models import ModelReference, ModelWish, logged_model, model_of
from pipelines.tracking.names import TAG_LIMIT, flatten, safe_key

if TYPE_CHECKING:
    from pipelines.tracking.mirror import Mirror

KEY = "rloo.key"
PARENT = "mlflow.parentRunId"
PARAMS_A_CALL = 100
REVIVALS = 3  # how often a run that vanishes is brought back


class Vanished(Exception):
    """The run had been deleted and is back, or has to be made again: everything is looked at anew."""


class RunCopy:
    """One run in MLflow.

    Args:
        connection: Where to.
        evidence: What the run is to look like.
        mirror: Knows the other runs.
        queue: Metrics that the training reports; None reads the journal once.
        adopted: Whether the evidence is a dead process's.
        reused: Whether the run should be there already, since its stage's output is reused.
    """

    def __init__(
        self,
        connection: Connection,
        evidence: Evidence,
        mirror: "Mirror",
        queue: MetricQueue | None = None,
        adopted: bool = False,
        reused: bool = False,
    ) -> None:
        self.connection, self.evidence, self.mirror = connection, evidence, mirror
        self.adopted, self.reused = adopted, reused
        self.queue = _from_journal(evidence) if queue is None else queue
        self.done = False
        self.opened = False
        self._steps: set[str] = set()  # what needs no second time
        self._sent: dict[str, object] = {}  # version of each file, value of each tag
        self._tried_to_create = False
        self._revivals = 0

    @property
    def client(self) -> MlflowClient:
        return self.connection.client

    @property
    def run_id(self) -> str:
        """MLflow's id of the run; "" until it is known."""
        return self.evidence.state.run_id

    def update(self) -> bool:
        """Bring the run up to date.

        Returns:
            Whether all is there, and the run has ended.

        Raises:
            Exception: If MLflow is away; call again later.
        """
        while True:
            try:
                return self._update()
            except Vanished:
                continue

    def open(self) -> None:
        """Make sure that the run exists and has the status of a run that goes on, unless it has ended long ago."""
        if self.opened:
            return
        found = self._find()
        state = self.evidence.state
        if found is not None:
            state.run_id = found.info.run_id
            if found.info.lifecycle_stage != "active":
                self._restore()
            if state.is_open and found.info.status != "RUNNING":
                self.client.update_run(state.run_id, status="RUNNING")
            if self.reused and found.info.status == FINISHED:  # it is there, and complete
                self.done = self.opened = True
                return
        elif self.reused and not self.evidence.acquire():  # another process has begun to
            self.done = self.opened = True
            return
        else:
            if self.reused:
                self._say("is not in MLflow (any more), and is logged again from the store")
            self._create()
        self.opened = True
        if self.adopted and self.evidence.is_taken_over():  # meanwhile: what it writes is not written over
            self.done = True
            return
        self.evidence.save()

    def _update(self) -> bool:
        state = self.evidence.state
        self.open()
        if self.done:
            return True
        with self.evidence.lock:  # nothing is written after the end: who has seen it sends all there is
            version, ended = self.evidence.version, not state.is_open
        self._try("log its tags", self._tags)
        self._try("log its parameters", self._parameters, once=True)
        if self._sent.get("version") != version:
            for name in self.evidence.files():
                self._try(f"log {name}", partial(self._file, name))
            self._sent["version"] = version
        if state.stage not in ("", "data"):
            self._try("link what it reads", self._inputs, once=True)
        if self.adopted or self.reused:
            self.queue.doubt()
        self._try("log metrics", lambda: self.queue.send(self.client, self.run_id))
        return ended and not state.is_open and self.mirror.may_close(self) and self._close()

    def _close(self) -> bool:
        """The end of a run, in an order that can be gone through again."""
        state = self.evidence.state
        status, ended, attempt = state.status, state.ended, state.attempt
        if "results" not in self._steps:
            self.queue.add(Line(0, self._results(), state.ended or state.started))
            self._steps.add("results")
        self._try("log results", lambda: self.queue.send(self.client, self.run_id))
        if state.stage == "data" and status == FINISHED:
            self._try("link what it made", self._inputs, once=True)
        if state.model is not None and status == FINISHED:
            self._try("log the model", self._model, once=True)
        if not state.stage and state.candidate and status == FINISHED:
            self._try("choose the champion", self._champion, once=True)
        self._try("log its tags", self._tags)
        self.client.set_terminated(self.run_id, status, ended)
        with self.evidence.lock:
            self.done = True
            if state.attempt != attempt or (self.adopted and self.evidence.is_taken_over()):
                return True  # it goes on meanwhile, and its copy is another
            self.evidence.save()
            self.mirror.note_run(state)
            self.evidence.delivered()
        return True

    def _try(self, what: str, call: Callable[[], object], once: bool = False) -> None:
        """Do one step. What MLflow refuses is told and left; that it is away is for the caller."""
        if what in self._steps:
            return
        try:
            call()
        except Exception as error:
            if not is_refusal(error) and not isinstance(error, KeyError | TypeError | ValueError):
                raise
            self._bring_back()
            self.connection.warn(f"MLflow refused to {what} of {self.evidence.state.name}: {first_line(error)}")
            self._steps.add(what)
        if once:
            self._steps.add(what)

    def _bring_back(self) -> None:
        """Find out whether a refusal has to do with the run (or its experiment) having been deleted.

        Raises:
            Vanished: If so; it is restored, or will be made again.
        """
        found = self._get(self.run_id)
        if found is not None and found.info.lifecycle_stage == "active":
            return
        if self._revivals >= REVIVALS:
            return
        self._revivals += 1
        if found is None:
            self._say("had been removed from MLflow for good, and is logged again")
            self.evidence.state.run_id = ""
            self._steps.clear()
            self._sent.clear()
            self.queue.refill(partial(read_journal, self.evidence.directory / JOURNAL))
            self._tried_to_create = True
        self.opened = False
        raise Vanished

    def _restore(self) -> None:
        self.connection.experiment_id = self.connection.find_experiment()  # restores the experiment, if that is it
        if self.client.get_run(self.run_id).info.lifecycle_stage != "active":
            self.client.restore_run(self.run_id)
            self._say("had been deleted in MLflow, and was restored")

    def _say(self, what: str) -> None:
        state = self.evidence.state
        self.connection.warn(f"the run of {state.name} {f'({state.run_id}) ' if state.run_id else ''}{what}")

    def _find(self) -> Run | None:
        """The run in MLflow, wherever a crash left off; None if it has to be made."""
        state = self.evidence.state
        found = self._get(state.run_id) if state.run_id else None
        if found is not None and (found.info.experiment_id == self.connection.experiment_id or self.reused):
            return found
        if not state.run_id and state.attempt == 1 and not (self.adopted or self._tried_to_create):
            return None  # just begun
        state.run_id = ""
        query = f"tags.`{KEY}` = '{state.key}'"
        runs = self.client.search_runs([self.connection.experiment_id], query, run_view_type=ViewType.ALL)
        return next(iter(runs), None)

    def _get(self, run_id: str) -> Run | None:
        try:
            return self.client.get_run(run_id)
        except Exception as error:
            if is_refusal(error):
                return None
            raise

    def _create(self) -> None:
        state = self.evidence.state
        self._tried_to_create = True  # from now on look first: an answer may be lost
        self.connection.experiment_id = self.connection.find_experiment()
        tags = {KEY: state.key, **state.process}
        if state.stage:
            tags |= {"stage": state.stage, "fingerprint": state.fingerprint}
        parent = self.mirror.id_of(state.parent, self.connection)
        tags |= {PARENT: parent} if parent else {}
        run = self.client.create_run(
            self.connection.experiment_id, start_time=state.started, tags=tags, run_name=state.name
        )
        state.run_id = run.info.run_id

    def _tags(self) -> None:
        state = self.evidence.state
        wanted = {**state.tags, **state.process, "attempt": str(state.attempt)}
        parent = self.mirror.id_of(state.parent, self.connection)
        wanted |= {PARENT: parent} if parent else {}
        wanted |= {"fingerprint": state.fingerprint} if state.stage else self.mirror.notes(state, self.connection)
        tables = [name for name in self.evidence.files() if name.startswith("tables/")]
        if tables:
            wanted["mlflow.loggedArtifacts"] = json.dumps([{"path": name, "type": "table"} for name in tables])
        tags = {safe_key(key): value[:TAG_LIMIT] for key, value in wanted.items()}
        new = {key: value for key, value in tags.items() if self._sent.get(f"tag {key}") != value}
        if new:
            self.client.log_batch(self.run_id, tags=[RunTag(key, value) for key, value in new.items()])
            self._sent |= {f"tag {key}": value for key, value in new.items()}

    def _parameters(self) -> None:
        try:
            settings: Mapping[str, object] = json.loads(self.evidence.read(SETTINGS))
        except FileNotFoundError:
            return
        params = [Param(key, value) for key, value in flatten(settings).items()]
        if self.evidence.state.stage:
            for start in range(0, len(params), PARAMS_A_CALL):
                self.client.log_batch(self.run_id, params=params[start : start + PARAMS_A_CALL])
        self._upload(SETTINGS, SETTINGS)

    def _file(self, name: str) -> None:
        with self.evidence.lock:
            version = self.evidence.written.get(name, 0)
        if self._sent.get(name) != version:
            self._upload(name, name.removeprefix("files/"))
            self._sent[name] = version

    def _upload(self, name: str, target: str) -> None:
        content = self.evidence.read(name)
        with tempfile.TemporaryDirectory(prefix="rloo-") as folder:
            local = Path(folder) / Path(target).name
            local.write_bytes(content)
            parent = Path(target).parent.as_posix()
            self.client.log_artifact(self.run_id, str(local), None if parent == "." else parent)

    def _inputs(self) -> None:
        """Link the tables and the models that a stage reads, each once."""
        state, store = self.evidence.state, self.mirror.store
        data = state.fingerprint if state.stage == "data" else state.inputs.get("data")
        directory = store.path("data", data) if data else None
        datasets = dataset_inputs(state.stage, directory, directory) if directory is not None else []
        models = [model.model_id for model in self._parents().values()]
        there = self.client.get_run(self.run_id).inputs
        known = {each.model_id for each in there.model_inputs} if there is not None else set()
        links = [LoggedModelInput(model) for model in dict.fromkeys(models) if model not in known]
        if datasets or links:
            self.client.log_inputs(self.run_id, datasets=datasets, models=links)

    def _parents(self) -> dict[str, ModelReference]:
        """The models that a stage reads, by the stage that made them."""
        runs = {stage: self.mirror.run_of(stage, fp) for stage, fp in self.evidence.state.inputs.items()}
        found = {stage: model_of(self.client, run_id) for stage, run_id in runs.items() if run_id}
        return {stage: model for stage, model in found.items() if model is not None}

    def _model(self) -> None:
        state = self.evidence.state
        assert state.model is not None
        wish = ModelWish(**state.model)
        origin = {f"from.{stage}": str(model) for stage, model in self._parents().items()} | wish.tags
        directory = self.mirror.store.path(state.stage, state.fingerprint) / "model"
        logged_model(self.connection, self.run_id, state.stage, directory, origin, wish, partial(self._card, wish))

    def _card(self, wish: ModelWish, uri: str) -> str:
        """The model card; MLflow loads the model by `uri`."""
        state, store = self.evidence.state, self.mirror.store
        manifest = store.manifest(state.stage, state.fingerprint)
        data = state.inputs.get("data")
        if manifest is None:
            return ""
        parents = {stage: str(model) for stage, model in self._parents().items()}
        return model_card(manifest, parents, store.path("data", data) if data else None, uri, wish.copy)

    def _champion(self) -> None:
        """Note the evaluation on the policy's version and in its card, and move the alias if the rule says so."""
        store, made = self.mirror.store, {note["stage"]: note["fingerprint"] for note in self.evidence.state.notes}
        evaluation = store.manifest("evaluation", made.get("evaluation", ""))
        run_id = self.mirror.run_of("policy", made.get("policy", ""))
        policy = model_of(self.client, run_id) if run_id else None
        score = score_of(evaluation, store.path("data", made.get("data", ""))) if evaluation is not None else None
        if evaluation is None or score is None or policy is None or policy.name is None or policy.version is None:
            return
        version = self.client.get_model_version(policy.name, policy.version)
        card = str(version.description or "").partition(EVALUATION)[0].rstrip()
        description = f"{card}\n\n{evaluation_section(evaluation, score.basis)}"
        self.client.update_model_version(policy.name, policy.version, description)
        with locked(store.root / "locks" / "champion"):  # two runs that end together: the second sees the first
            said = crown(self.client, version, score, evaluation.summary)
        self.evidence.state.tags["champion"] = said.partition(" ")[2].strip()
        self.mirror.say(said)

    def _results(self) -> dict[str, float]:
        """The numbers of the whole run; one that is a curve already becomes `summary/<name>`."""
        curves = {safe_key(name) for line in read_journal(self.evidence.directory / JOURNAL) for name in line.values}
        return {
            f"summary/{name}" if safe_key(name) in curves else name: value
            for name, value in self.evidence.state.results.items()
        }


def _from_journal(evidence: Evidence) -> MetricQueue:
    """All metrics of the journal."""
    queue = MetricQueue(resumed=True)
    for line in read_journal(evidence.directory / JOURNAL):
        queue.add(line)
    return queue
