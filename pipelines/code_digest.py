"""What a stage's code is: the modules its module imports, directly or through others, less comments and docstrings.

Nothing is imported to find out: imports are read from the source, also those inside functions. A change to a module
that a stage does not reach does not run the stage again, and neither does a better comment.
"""

import ast
import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import rloo_core

# Modules that cannot change a number: the types of settings (their values are in the fingerprint), the observer
# protocol, and the list of stages (their inputs are in the fingerprint). A test watches that they stay that way.
WITHOUT_EFFECT = frozenset({"rloo_core.settings", "rloo_core.observer", "rloo_core.stages"})


class SourceError(ValueError):
    """A file that is no Python; the message says where."""


def core_packages() -> dict[str, Path]:
    """The library's directory, by package name."""
    return {"rloo_core": Path(rloo_core.__file__).parent}


def on_path(top: str) -> dict[str, Path]:
    """Directory or file of a top-level module on `sys.path`, by its name; empty if there is none."""
    for folder in sys.path:
        place = Path(folder or ".") / top
        if place.is_dir():
            return {top: place}
        if place.with_suffix(".py").is_file():
            return {top: place.with_suffix(".py")}
    return {}


def module_file(module: str, packages: Mapping[str, Path]) -> Path | None:
    """The source of a module within `packages`, or None."""
    top, *rest = module.split(".")
    if top not in packages:
        return None
    place = packages[top].joinpath(*rest)
    candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"), place)
    return next((file for file in candidates if file.is_file()), None)


def code_digests(module: str, packages: Mapping[str, Path]) -> dict[str, str]:
    """Digest of every module that `module` reaches within `packages`, itself included.

    Args:
        module: Dotted name, e.g. "rloo_core.stages.sft".
        packages: Directory (or, for a single module, file) of each top-level package that is followed.

    Returns:
        SHA-256 of each module's code, by dotted name, sorted.

    Raises:
        ValueError: If there is no such module in `packages`.
        SourceError: If a module that is reached is no Python.
    """
    if module_file(module, packages) is None:
        raise ValueError(f"expected a module in {', '.join(packages)}, got {module}: no such file")
    reached: dict[str, str] = {}
    seen: set[str] = set()
    waiting = set(_with_parents(module))
    while waiting:
        name = waiting.pop()
        seen.add(name)
        source = module_file(name, packages)
        if source is None:  # a name inside a module, or somebody else's module
            continue
        state = source.stat()
        reached[name], imports = _read(source, name, state.st_size, state.st_mtime_ns)
        waiting |= {parent for imported in imports for parent in _with_parents(imported)} - seen
    return {name: digest for name, digest in sorted(reached.items()) if name not in WITHOUT_EFFECT}


def _with_parents(module: str) -> list[str]:
    """Importing a.b.c runs a, a.b and a.b.c."""
    names = module.split(".")
    return [".".join(names[:length]) for length in range(1, len(names) + 1)]


@cache
def _read(source: Path, module: str, size: int, changed_ns: int) -> tuple[str, tuple[str, ...]]:
    """Digest of one module and the names it may import; remembered while the file stays as it is."""
    tree = parsed(source)
    package = module if source.name == "__init__.py" else module.rpartition(".")[0]
    imports: list[str] = []
    for node in ast.walk(tree):  # once: a plan reads a hundred modules
        imports += _imported(node, package)
        _drop_docstring(node)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imports)


def parsed(source: Path) -> ast.Module:
    """The syntax tree of a file.

    Raises:
        SourceError: If it is no Python; with file and line.
    """
    try:
        return ast.parse(source.read_bytes())
    except SyntaxError as error:
        raise SourceError(f"{source}, line {error.lineno or 1}: {error.msg}") from error
    except (ValueError, OSError) as error:
        raise SourceError(f"{source}: {error}") from error


def _imported(node: ast.AST, package: str) -> list[str]:
    """Every name that a node imports and that may be a module: of `from a import b`, both a and a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _base(node, package)
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return []


def _base(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _drop_docstring(node: ast.AST) -> None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:]
