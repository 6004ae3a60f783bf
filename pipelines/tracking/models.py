"""A Hugging Face directory as an MLflow model that both plain `transformers` and MLflow load; its registered version.

`mlflow.transformers.save_model` would load the weights, ask the model hub for a card and a licence (47 s without a
network), and put the tokenizer where `AutoTokenizer` does not look. Its layout is small, so it is written here:

    MLmodel                 flavours transformers and python_function
    model/                  the stage's directory as it is, tokenizer included: `from_pretrained` reads it
    components/tokenizer/   the tokenizer again, where MLflow reads it
"""

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelOutput
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.store.entities import PagedList
from mlflow.types.schema import ColSpec, Schema

from pipelines.tracking.connection import Connection

VERSIONS_TAG = "mlflow.modelVersions"  # how MLflow's pages find the registered versions of a logged model
WEIGHTS = (".safetensors", ".bin", ".pt")
NOT_TOKENIZER = {"config.json", "generation_config.json", "model.safetensors.index.json", "adapter_config.json"}


@dataclass(frozen=True)
class ModelWish:
    """How a stage's model is to be logged.

    Args:
        copy: Whether the files go to MLflow, or only a pointer to the store.
        name: Registered model; None to leave it unregistered.
        tags: Tags for model and version: fingerprint, digests of the data.
    """

    copy: bool
    name: str | None
    tags: dict[str, str]


@dataclass(frozen=True)
class ModelReference:
    """A logged model and, where it was registered, its version."""

    model_id: str
    name: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.name}/{self.version}" if self.name else self.model_id


def logged_model(
    connection: Connection,
    run_id: str,
    stage: str,
    directory: Path,
    tags: dict[str, str],
    wish: ModelWish,
    card: Callable[[str], str],
) -> ModelReference:
    """Log a published model as an output of a run, and register it. Done again after a crash, it makes nothing twice.

    Args:
        connection: Where to.
        run_id: The run that made it.
        stage: Name of the stage; the model's name.
        directory: Hugging Face directory in the store, with the tokenizer's files.
        tags: Tags of the logged model and of its version.
        wish: Whether files are copied, and under which name it is registered.
        card: Given what MLflow loads the model by, writes markdown about it: the version's description, and README.md
            beside the model's files.

    Returns:
        The logged model, with its version where it is registered.
    """
    client = connection.client
    tags = {**tags, "store.path": str(directory)} | ({} if wish.copy else {"mlflow.model.isExternal": "true"})
    logged = _begun(connection, run_id)
    if logged is None:
        logged = client.create_logged_model(connection.experiment_id, name=stage, source_run_id=run_id, tags=tags)
    if str(logged.status) != "READY":
        _upload(client, logged, directory, wish.copy, card(f"models:/{logged.model_id}"))
        client.finalize_logged_model(logged.model_id, "READY")
    outputs = client.get_run(run_id).outputs
    if outputs is None or logged.model_id not in {each.model_id for each in outputs.model_outputs}:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    reference = ModelReference(logged.model_id)
    if wish.name is None:
        return reference
    return register(connection, reference, wish.name, run_id, tags, card(f"models:/{logged.model_id}"))


def _begun(connection: Connection, run_id: str) -> LoggedModel | None:
    """The model of a run that a killed process began to log."""
    found = connection.client.search_logged_models(
        [connection.experiment_id], filter_string=f"source_run_id = '{run_id}'"
    )
    return next(iter(found), None)


def _upload(client: MlflowClient, logged: LoggedModel, directory: Path, copy: bool, card: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rloo-model-") as folder:
        write_description(Path(folder), logged, directory, copy)
        (Path(folder) / "README.md").write_text(card, encoding="utf-8")
        client.log_model_artifacts(logged.model_id, folder)
    if copy:
        client.log_model_artifacts(logged.model_id, str(directory), "model")


def write_description(folder: Path, logged: LoggedModel, directory: Path, copy: bool) -> None:
    """Everything of the layout but the weights: `MLmodel`, requirements, the tokenizer again."""
    model = Model(
        artifact_path=logged.artifact_location,
        run_id=logged.source_run_id,
        model_id=logged.model_id,
        model_uuid=logged.model_id,
        signature=ModelSignature(Schema([ColSpec("string")]), Schema([ColSpec("string")])),
        metadata=None if copy else {"mlflow.model.isExternal": True},
    )
    if copy:
        _add_flavors(model, folder, directory, logged.name)
    model.save(str(folder / "MLmodel"))


def _add_flavors(model: Model, folder: Path, directory: Path, name: str) -> None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    architecture = config["architectures"][0]
    classifies = architecture.endswith("ForSequenceClassification")
    model.add_flavor(
        "transformers",
        transformers_version=version("transformers"),
        code=None,
        task="text-classification" if classifies else "text-generation",
        instance_type="TextClassificationPipeline" if classifies else "TextGenerationPipeline",
        pipeline_model_type=architecture,
        source_model_name=name,
        model_binary="model",
        components=["tokenizer"],
        tokenizer_type="AutoTokenizer",
        torch_dtype=f"torch.{config.get('dtype') or 'float32'}",
    )
    model.add_flavor(
        "python_function",
        loader_module="mlflow.transformers",
        python_version=platform.python_version(),
        env={"virtualenv": "python_env.yaml"},
    )
    requirements = [f"{name}=={version(name).split('+')[0]}" for name in ("mlflow", "torch", "transformers")]
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    environment = (
        f"python: {platform.python_version()}\nbuild_dependencies: [pip]\ndependencies: [-r requirements.txt]\n"
    )
    (folder / "python_env.yaml").write_text(environment, encoding="utf-8")
    _copy_tokenizer(directory, folder / "components" / "tokenizer")


def _copy_tokenizer(directory: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in directory.iterdir():
        if file.is_file() and file.suffix not in WEIGHTS and file.name not in NOT_TOKENIZER:
            shutil.copyfile(file, target / file.name)


def register(
    connection: Connection, model: ModelReference, name: str, run_id: str, tags: dict[str, str], card: str = ""
) -> ModelReference:
    """Register a logged model as the next version of `name`, unless that has been done.

    The client's call leaves the link from the logged model to its version unset, and resolves `models:/` through the
    process's global server when it talks to a database itself; both are seen to here.

    Returns:
        The same model, with name and version.
    """
    client = connection.client
    create_registered_model(client, name)
    logged = client.get_logged_model(model.model_id)
    made = next(iter(client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")), None)
    if made is None:
        source = logged.artifact_location if connection.is_local else f"models:/{model.model_id}"
        made = client.create_model_version(
            name, source, run_id, tags=tags, description=card or None, model_id=model.model_id
        )
    versions = json.loads(logged.tags.get(VERSIONS_TAG, "[]"))
    own = {"name": name, "version": made.version}
    if own not in versions:
        client.set_logged_model_tags(model.model_id, {VERSIONS_TAG: json.dumps([*versions, own])})
    return ModelReference(model.model_id, name, str(made.version))


def create_registered_model(client: MlflowClient, name: str) -> None:
    """Make sure that the registered model exists."""
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def model_of(client: MlflowClient, run_id: str) -> ModelReference | None:
    """The model a run made, with its latest registered version; None if there is none."""
    outputs = client.get_run(run_id).outputs
    if outputs is None or not outputs.model_outputs:
        return None
    model_id = outputs.model_outputs[-1].model_id
    versions = json.loads(client.get_logged_model(model_id).tags.get(VERSIONS_TAG, "[]"))
    if not versions:
        return ModelReference(model_id)
    return ModelReference(model_id, versions[-1]["name"], str(versions[-1]["version"]))


def registered_outputs(client: MlflowClient) -> list[tuple[str, str]]:
    """Stage and fingerprint of what every registered version was made by; nothing of these may be removed."""
    versions = _every_page(client.search_model_versions)
    return [(version.tags.get("stage", ""), version.tags.get("fingerprint", "")) for version in versions]


def _every_page(search: Callable[..., PagedList[ModelVersion]]) -> Iterator[ModelVersion]:
    """All that a search finds; MLflow gives a page at a time."""
    token: str | None = None
    while True:
        page = search(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def mark_pruned(client: MlflowClient, run_id: str) -> None:
    """Note on the model of a run that the store has its files no more."""
    model = model_of(client, run_id)
    if model is not None:
        client.set_logged_model_tags(model.model_id, {"store.pruned": "true"})
