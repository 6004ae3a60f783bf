"""What a module defines at its top level, read from its source without importing it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pipelines.code_digest import parsed

OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
DYNAMIC = frozenset({"globals", "exec", "vars", "__getattr__"})  # who uses these may define anything


def defined_names(source: Path) -> frozenset[str] | None:
    """Names that can be imported from a module.

    Args:
        source: Its file.

    Returns:
        Functions, classes, imports and variables at its top level, also inside `if` and `try`; None where reading
        cannot tell: star imports, packages that import (re-export), names made when the module runs.

    Raises:
        SourceError: If the file is no Python.
    """
    tree = parsed(source)
    top = list(_top_level(tree))
    imports = [node for node in top if isinstance(node, ast.Import | ast.ImportFrom)]
    star = any(alias.name == "*" for node in imports for alias in node.names)
    dynamic = any(name in DYNAMIC for node in ast.walk(tree) for name in _mentioned(node))
    if star or dynamic or (imports and source.name == "__init__.py"):
        return None
    names = {name for node in top for name in _defined(node)}
    return frozenset(names.union(*(node.names for node in ast.walk(tree) if isinstance(node, ast.Global))))


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, OWN_SCOPE):
            yield from _top_level(child)


def _defined(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []


def _mentioned(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    return [node.id] if isinstance(node, ast.Name) else []
