"""What users add from outside: functions named by `module:function`, or by an entry point of an installed package.

[project.entry-points."rloo.rewards"]
politeness = "my_package.rewards:politeness"
"""

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Literal

Kind = Literal["rewards", "advantages", "data_sources", "judges"]


def entry_point_names(kind: Kind) -> list[str]:
    """Names that installed packages register in the group `rloo.{kind}`."""
    return sorted(point.name for point in entry_points(group=f"rloo.{kind}"))


def location(kind: Kind, name: str) -> str:
    """`module:function` of a name; the name itself if it is one. Nothing is imported.

    Raises:
        ValueError: If no installed package registers the name.
    """
    if ":" in name:
        return name
    found = [point.value for point in entry_points(group=f"rloo.{kind}") if point.name == name]
    if not found:
        known = entry_point_names(kind)
        raise ValueError(
            f"{name} is neither module:function nor an entry point of the group rloo.{kind}"
            + (
                f"; installed packages register {', '.join(known)}"
                if known
                else ", which no installed package registers"
            )
        )
    return found[0]


def load_function(path: str) -> Callable[..., Any]:
    """Import `module:function`.

    Raises:
        ValueError: If there is no such module or function, naming which.
    """
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path}: {error}; it must read `module:function`") from error
    except Exception as error:  # whatever the module does when it is imported
        raise ValueError(f"{path}: importing {module_name} raised {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ValueError(f"{path} is a {type(function).__name__}, not a function")
    loaded: Callable[..., Any] = function
    return loaded


def load_extension(kind: Kind, name: str) -> Callable[..., Any]:
    """The function of a name.

    Raises:
        ValueError: As `location` and `load_function`.
    """
    return load_function(location(kind, name))
