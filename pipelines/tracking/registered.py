"""From a registered model's name to a directory with its files."""

import re
from pathlib import Path

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from rloo_core.settings import ExperimentSettings

NAME = re.compile(r"(?:models:/)?(?P<name>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[\w.-]+))")


def registered_model(settings: ExperimentSettings, reference: str) -> Path | None:
    """Directory of a registered model, given as NAME/VERSION or NAME@ALIAS (`models:/` may stand before it).

    Files that are on this machine are used where they are; others are fetched below the run root.

    Returns:
        None if the text is no such name.

    Raises:
        ValueError: If there is no such model, or its files are gone.
    """
    match = NAME.fullmatch(reference)
    if match is None:
        return None
    root = Path(settings.paths.root).absolute()
    uri = settings.tracking.uri or f"sqlite:///{root}/mlflow.db"
    if settings.tracking.uri is None and not (root / "mlflow.db").exists():
        raise ValueError(
            f"{reference}: there is no model registry in {root}; name a directory, or another paths.root=..."
        )
    client = MlflowClient(uri, uri)
    try:
        if match["alias"]:
            version = client.get_model_version_by_alias(match["name"], match["alias"])
        else:
            version = client.get_model_version(match["name"], match["version"])
        logged = client.get_logged_model(version.model_id) if version.model_id else None
    except MlflowException as error:
        raise ValueError(f"{reference}: {str(error).splitlines()[0]}") from error
    location = logged.artifact_location if logged is not None else version.source
    stored = (logged.tags if logged is not None else version.tags).get("store.path")
    places = [Path(str(location).removeprefix("file://")) / "model", *([Path(stored)] if stored else [])]
    found = next((place for place in places if (place / "config.json").is_file()), None)
    return found or _fetched(client, f"{location}/model", root / "cache" / "models" / str(version.model_id), reference)


def _fetched(client: MlflowClient, uri: str, target: Path, reference: str) -> Path:
    if not (target / "model" / "config.json").is_file():
        try:
            target.mkdir(parents=True, exist_ok=True)
            download_artifacts(artifact_uri=uri, dst_path=str(target), tracking_uri=client.tracking_uri)
        except (MlflowException, OSError) as error:
            raise ValueError(f"{reference}: its files cannot be fetched from {uri}: {error}") from error
    return target / "model"
