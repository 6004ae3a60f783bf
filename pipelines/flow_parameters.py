"""What a flow run can be told, as types that Prefect's pages show and check: an experiment, overrides, which stages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import core_schema

from pipelines.config_overrides import group_options
from pipelines.plan import Selection


class _Offered:
    """Offers names in Prefect's pages; they are looked up when a deployment is made, not when this is imported."""

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self._names = names

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "enum": self._names()}


def offered(names: Callable[[], list[str]]) -> Any:
    """An annotation of a parameter that is one of these names."""
    return _Offered(names)


StageName = Literal["data", "sft", "reward_model", "policy", "evaluation"]
Experiment = Annotated[str, offered(lambda: group_options()["experiment"])]
Override = Annotated[str, Field(json_schema_extra={"pattern": r"^[^=\s]+=", "examples": ["algorithm.kl_coef=0.3"]})]


def split_experiment(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The experiment that a person typed among overrides, and the other overrides."""
    named = [text.partition("=")[2] for text in overrides if text.startswith("experiment=")]
    return (named[-1] if named else "default"), [text for text in overrides if not text.startswith("experiment=")]


def as_parameters(overrides: Sequence[str], selection: Selection) -> dict[str, object]:
    """What a person typed on the command line, as parameters of the flow."""
    experiment, others = split_experiment(overrides)
    return {
        "experiment": experiment,
        "overrides": others,
        "only": list(selection.only),
        "from_stage": selection.from_stage,
        "until": selection.until,
        "force": list(selection.force),
    }


def flow_run_name(parameters: Mapping[str, Any]) -> str:
    """A name that says what the run does: "tiny", "tiny, only sft", "tiny, dry run"."""
    parts = [str(parameters["experiment"])]
    parts += [f"only {', '.join(parameters['only'])}"] if parameters["only"] else []
    parts += [f"from {parameters['from_stage']}"] if parameters["from_stage"] else []
    parts += [f"until {parameters['until']}"] if parameters["until"] else []
    parts += [f"force {', '.join(parameters['force'])}"] if parameters["force"] else []
    parts += ["dry run"] if parameters["dry_run"] else []
    return ", ".join(parts)
