"""Reading a study: its YAML file, sized by a profile, and everything in it checked.

    load_definition("kl", "laptop")  →  Definition, or ConfigError

A profile (conf/study/_profiles.yaml, and the study's own `profiles`) sizes it: its base settings, its axes' values, its
seeds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from pipelines.config_errors import ConfigError, listed, nearest
from pipelines.config_overrides import last_of_each
from pipelines.config_validation import expectation, shown
from pipelines.studies.checks import checked
from pipelines.studies.definition import Axis, Claim, Definition, FigureWish, Measure, Seeds, Table, Term

ALL = "all"
Content = dict[str, Any]
OF_THIS_FOLDER = "of_this_folder"  # in conf/study/_profiles.yaml
MERGE = "tag:yaml.org,2002:merge"  # <<, which may stand several times
LONGEST_PLACE = 120  # characters in a message
OURS = ("name", "file", "profile")  # of a definition, and not for its file to say
KEYS = ["setting", "profiles", *(key for part in (Definition, Axis, Seeds, Measure, Table, FigureWish, Claim, Term)
                                 for key in part.model_fields if key not in OURS)]  # fmt: skip


def study_names() -> list[str]:
    """The studies of conf/study."""
    names = (file.name for file in _folder().iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and name[0] != "_")


def named(study: str) -> list[str]:
    """The studies that a name stands for: `all` for those of conf/study, any other for itself."""
    return study_names() if study == ALL else [study]


def profile_names() -> list[str]:
    """The profiles that every study has."""
    return list(_profiles(_yaml(_folder() / "_profiles.yaml")))


def load_definition(study: str, profile: str, overrides: Sequence[str] = (), seeds: int | None = None) -> Definition:
    """Read a study.

    Args:
        study: A name of conf/study, or a YAML file.
        profile: Sizes it.
        overrides: Settings of every point that a person typed; they win over the study's base, not over its axes.
        seeds: Number of seeds, if not the profile's.

    Raises:
        ConfigError: If there is no such study or profile, or it says something impossible.
    """
    try:
        given = _read(study)
        own = _profiles(given.pop("profiles", None))
        _check_keys(given, own)
        common = _profiles(_yaml(_folder() / "_profiles.yaml"))
        if profile not in {**common, **own}:
            names = {**common, **own}
            raise ConfigError(f"there is no profile {profile}; it has {listed(names, 'and')}{nearest(profile, names)}")
        shared = common.get(profile, {})
        ours = _mapping(shared, OF_THIS_FOLDER) if study in study_names() else {}
        shared.pop(OF_THIS_FOLDER, None)
        sized = _sized(shared, ours, given, own.get(profile, {}))
        sized["base"] = last_of_each([*sized["base"], *overrides])
        if seeds is not None:
            sized["seeds"] |= {"count": seeds}
        whole = _validated({"measures": {}, **sized, "name": Path(study).stem, "file": study, "profile": profile})
        axes = _axes([given.get("axes"), *(each.get("axes") for each in own.values())])
        return checked(whole, axes, overrides)
    except ConfigError as error:
        raise ConfigError([f"study {study}: {problem}" for problem in error.problems]) from None


def _check_keys(given: Content, own: dict[str, Content]) -> None:
    """Refuse what is ours to say, and an axis without content; a profile may leave one out that way."""
    for key in OURS:
        if any(key in part for part in (given, *own.values())):
            raise ConfigError(f"{key}: there is no such key{nearest(key, KEYS)}")
    for name, axis in _mapping(given, "axes").items():
        if axis is None:
            raise ConfigError(f"axes.{name}: null, but it must be a section with keys of its own")


def _sized(*parts: Content) -> Content:
    """The study with what its profiles say, the last part winning: base is added to, axes and seeds go key by key."""
    axes = {name: axis for part in parts for name, axis in _mapping(part, "axes").items()}
    return {
        **{key: value for part in parts for key, value in part.items()},
        "base": [text for part in parts for text in _texts(part, "base")],
        "axes": {name: axis for name, axis in axes.items() if axis is not None},
        "seeds": {key: value for part in parts for key, value in _mapping(part, "seeds").items()},
    }


def _profiles(given: Any) -> dict[str, Content]:
    profiles = _mapping({"profiles": given}, "profiles")
    return {str(name): _mapping(profiles, name) for name in profiles}


def _mapping(part: Content, key: str) -> Content:
    value = part.get(key)
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{key}: {shown(value)}, but it must be a section with keys of its own")
    return dict(value or {})


def _texts(part: Content, key: str) -> list[str]:
    value = part.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{key}: {shown(value)}, but it must be a list of overrides such as [algorithm.group_size=2]")
    return value


def _axes(parts: Sequence[Any]) -> dict[str, list[str]]:
    """Names of the values that each axis has in any profile."""
    names: dict[str, list[str]] = {}
    for part in parts:
        given = {name: axis for name, axis in _mapping({"axes": part}, "axes").items() if axis is not None}
        try:
            axes = TypeAdapter(dict[str, Axis]).validate_python(given)
        except ValidationError as error:
            raise ConfigError(_sentences(error, "axes")) from None
        for name, axis in axes.items():
            there = names.setdefault(name, [])
            there += [value for value in axis.values if value not in there]
    return names


def _validated(values: Content) -> Definition:
    try:
        return Definition(**values)
    except ValidationError as error:
        raise ConfigError(_sentences(error)) from None


def _sentences(error: ValidationError, *where: str) -> list[str]:
    """One a mistake; a list is not called empty as well because of what is wrong inside it."""
    found = error.errors()
    wrong_inside = {each["loc"][:depth] for each in found for depth in range(len(each["loc"]))}
    return [
        _sentence(_dotted(*where, *each["loc"]), each)
        for each in found
        if not (each["type"] == "too_short" and each["loc"] in wrong_inside)
    ]


def _dotted(*parts: object) -> str:
    """A place in the file, on one line; `[key]` is pydantic's mark of a name."""
    return " ".join(".".join(str(part) for part in parts if part != "[key]").split())[:LONGEST_PLACE]


def _sentence(place: str, error: Any) -> str:
    """One of pydantic's errors in our words."""
    if error["type"] == "extra_forbidden":
        return f"{place}: there is no such key{nearest(place.rpartition('.')[2], KEYS)}"
    if error["type"] == "missing":
        return f"{place} is missing"
    if error["type"] == "value_error":
        return f"{place}: {error['ctx']['error']}"
    if error["type"] in ("too_short", "string_too_short"):
        return f"{place}: it needs at least one {'character' if error['type'] == 'string_too_short' else 'value'}"
    wanted = expectation(error["type"], error.get("ctx", {}), error["msg"])
    return f"{place}: {shown(error['input'])}, but it must be {wanted}"


def _read(study: str) -> Content:
    if study in study_names():
        return _yaml(_folder() / f"{study}.yaml")
    path = Path(study).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return _yaml(path)
    raise ConfigError(
        f"there is no such study; conf/study has {listed(study_names(), 'and')}{nearest(study, study_names())}; "
        f"a study of your own is a YAML file: rloo study my_study.yaml"
    )


def _yaml(path: Path | Traversable) -> Content:
    try:
        text = path.read_text(encoding="utf-8")
        content, twice = yaml.safe_load(text), list(_twice(yaml.compose(text, yaml.SafeLoader)))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path.name} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"a mapping is expected (title, question, axes, ...), not {shown(content)}")
    if twice:
        raise ConfigError(f"{path.name} has {listed(twice, 'and')} twice in one place; which of them counts?")
    return {str(key): value for key, value in content.items()}


def _twice(node: Any) -> Iterator[str]:
    """Keys that stand twice in one mapping of a YAML document: PyYAML would take the last one in silence."""
    if isinstance(node, yaml.MappingNode):
        keys = (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE)
        yield from (key for key, many in Counter(key.value for key in keys).items() if many > 1)
    pairs = isinstance(node, yaml.MappingNode)
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        for child in part if pairs else (part,):
            yield from _twice(child)


def _folder() -> Traversable:
    return files("pipelines.conf") / "study"
