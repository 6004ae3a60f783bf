"""From a registered model back to the rows it was trained on, as MLflow has it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from pipelines.config_errors import ConfigError, nearest

STAGES = ("policy", "reward_model", "sft")  # in this order beneath a model


@dataclass(frozen=True, order=True)
class TableRead:
    """A table that a stage read."""

    name: str
    rows: int
    sha256: str
    source: str


@dataclass
class Node:
    """A registered model (or an unregistered one) and what it was made from."""

    name: str
    version: str
    stage: str
    fingerprint: str
    run_id: str
    aliases: list[str]
    tables: list[TableRead] = field(default_factory=list)
    made_from: list["Node"] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its name, version and aliases, in words."""
        aliases = f" ({', '.join(self.aliases)})" if self.aliases else ""
        return f"{self.name} version {self.version}{aliases}" if self.version else self.name

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        own = {key: value for key, value in vars(self).items() if key not in ("tables", "made_from")}
        return own | {
            "tables": [vars(t) for t in self.tables],
            "made_from": [node.as_dict() for node in self.made_from],
        }


def lineage(client: MlflowClient, model: str) -> Node:
    """The tree below a model.

    Args:
        client: MLflow.
        model: NAME, NAME@ALIAS, NAME/VERSION, each also with `models:/` before it; a name alone is its newest version.

    Raises:
        ConfigError: If there is no such model.
    """
    return _node(client, find_version(client, model))


def find_version(client: MlflowClient, model: str) -> ModelVersion:
    """A registered version, by what a person typed.

    Raises:
        ConfigError: If there is none.
    """
    text = model.removeprefix("models:/")
    name, at, alias = text.partition("@")
    name, _, version = name.partition("/")
    try:
        if at:
            return client.get_model_version_by_alias(name, alias)
        if version:
            return client.get_model_version(name, version)
    except MlflowException as error:
        raise ConfigError(f"{model}: {str(error).splitlines()[0]}{_advice(client, name)}") from None
    found = list(client.search_model_versions(f"name = '{name}'")) if "'" not in name else []
    if not found:
        raise ConfigError(f"there is no registered model {name}{_advice(client, name)}")
    return client.get_model_version(name, str(max(int(each.version) for each in found)))


def _advice(client: MlflowClient, name: str) -> str:
    names = [model.name for model in client.search_registered_models()]
    if not names:
        return "; nothing is registered there yet"
    return f"{nearest(name, names)}; there are {', '.join(names)}" if name not in names else ""


def _node(client: MlflowClient, version: ModelVersion) -> Node:
    tags = version.tags
    aliases = list(client.get_registered_model(version.name).aliases.items())
    node = Node(
        version.name,
        str(version.version),
        tags.get("stage", ""),
        tags.get("fingerprint", ""),
        version.run_id or "",
        sorted(alias for alias, number in aliases if str(number) == str(version.version)),
        _tables(client, version.run_id or ""),
    )
    for stage in STAGES:
        parent = tags.get(f"from.{stage}")
        if parent is not None:
            node.made_from.append(_parent(client, stage, parent))
    return node


def _parent(client: MlflowClient, stage: str, reference: str) -> Node:
    """The node of "name/version", or of the id of a model that is not registered, or is so no more."""
    name, _, version = reference.partition("/")
    try:
        if version:
            return _node(client, client.get_model_version(name, version))
        run_id = client.get_logged_model(reference).source_run_id or ""
    except MlflowException:
        return Node(f"{reference} (gone from MLflow)", "", stage, "", "", [])
    return Node(reference, "", stage, "", run_id, [], _tables(client, run_id))


def _tables(client: MlflowClient, run_id: str) -> list[TableRead]:
    try:
        inputs = client.get_run(run_id).inputs if run_id else None
    except MlflowException:
        return []
    return sorted(_read(each.dataset) for each in inputs.dataset_inputs) if inputs is not None else []


def _read(dataset: Any) -> TableRead:
    source, profile = json.loads(dataset.source or "{}"), json.loads(dataset.profile or "{}")
    return TableRead(
        dataset.name, int(profile.get("num_rows", 0)), source.get("sha256", dataset.digest), source.get("source", "")
    )


def mermaid(root: Node) -> str:
    """The tree as a Mermaid flowchart; what several models were made from appears once."""
    names: dict[str, str] = {}
    lines = ["flowchart LR"]
    for line in _edges(root, names):
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)


def _edges(node: Node, names: dict[str, str]) -> Iterator[str]:
    own = _identifier(node.title, names)
    yield f'  {own}["{_label(node.title)}"]'
    for table in node.tables:
        rows = f"{table.name}: {table.rows} rows"
        other = _identifier(f"{rows} {table.sha256}", names)
        yield f'  {other}[("{_label(rows)}<br/>{table.sha256[:12]}")]'
        yield f"  {other} --> {own}"
    for parent in node.made_from:
        yield from _edges(parent, names)
        yield f"  {_identifier(parent.title, names)} --> {own}"


def _identifier(title: str, names: dict[str, str]) -> str:
    return names.setdefault(title, f"n{len(names)}")


def _label(text: str) -> str:
    return text.replace('"', "#quot;")
