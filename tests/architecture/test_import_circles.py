"""No file of a package may import itself through others: who reads a file never comes back to it."""

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

ROOT = Path(__file__).parents[2]

ENTRY_POINTS = frozenset({"apc_cli.commands"})
"""Packages whose `__init__` is the program itself, which imports what stands below it."""

Imports = Mapping[str, frozenset[str]]
"""The modules that each module imports, by their dotted names."""


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions and under TYPE_CHECKING count, and the `__init__` that an import runs on its way."""
    imports = _imports_of_all_packages()
    assert len(imports) > 300, "the packages were not found"
    assert list(_circles(imports)) == []


def test_a_circle_is_found() -> None:
    imports = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"b"}), "d": frozenset({"d", "a"})}
    assert sorted(_circles(imports)) == [("b", "c"), ("d",)]


def test_hidden_imports_are_read() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from room import shelf

def late():
    import room.table
    from room.chair import Leg
    from . import near
    from .low import Foot
"""
    modules = frozenset({"room", "room.shelf", "room.table", "room.chair", "room.near", "room.low"})
    assert _imports_of(ast.parse(source), "room", modules) == modules - {"room"}


def test_an_import_runs_the_packages_above() -> None:
    modules = frozenset({"house.room", "house.room.shelf", "house.room.shelf.book", "house.hall.door"})
    assert _with_packages("house.hall.door", {"house.room.shelf.book"}, modules) == modules - {"house.hall.door"}
    assert _with_packages("house.room.table", {"house.room.shelf.book"}, modules) == modules - {
        "house.room",
        "house.hall.door",
    }


def _imports_of_all_packages() -> Imports:
    files = {}
    for folder in ROOT.glob("*/apc_*"):
        for file in folder.rglob("*.py"):
            parts = file.relative_to(folder.parent).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            files[".".join(parts[:-1] if is_package else parts)] = (file, is_package)
    modules = frozenset(files)
    imports = {}
    for module, (file, is_package) in files.items():
        package = module if is_package else module.rpartition(".")[0]
        imports[module] = _with_packages(module, _imports_of(ast.parse(file.read_bytes()), package, modules), modules)
    return imports


def _with_packages(module: str, imported: Set[str], modules: frozenset[str]) -> frozenset[str]:
    """Return also the packages whose `__init__` an import runs on its way, those that `module` itself is in aside.

    The outermost packages do not count: they export the names of all their files, and no file of theirs imports them.
    """
    above = {".".join(parts[:depth]) for parts in map(_parts, imported) for depth in range(2, len(parts))}
    passed = (above & modules) - ENTRY_POINTS
    return frozenset(imported) | frozenset(one for one in passed if not f"{module}.".startswith(f"{one}."))


def _parts(module: str) -> list[str]:
    return module.split(".")


def _imports_of(tree: ast.Module, package: str, modules: frozenset[str]) -> frozenset[str]:
    """Return the modules among `modules` that a file of `package` imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, package)
            # `from room import table` imports the module room.table where there is one, otherwise a name of room.
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else source for name in names}
    return frozenset(found & modules)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _circles(imports: Imports) -> Iterator[tuple[str, ...]]:
    """Yield the groups of modules that reach each other, and modules that import themselves (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()
    for module in imports:
        _visit(module, imports, seen, order)
    importers: dict[str, set[str]] = {module: set() for module in imports}
    for module, imported in imports.items():
        for one in imported:
            importers[one].add(module)
    seen = set()
    for module in reversed(order):
        group: list[str] = []
        _visit(module, importers, seen, group)
        if len(group) > 1 or (group and module in imports[module]):
            yield tuple(sorted(group))


def _visit(module: str, edges: Mapping[str, frozenset[str] | set[str]], seen: set[str], order: list[str]) -> None:
    """Append what `module` reaches and was not seen before, in the order in which each is left."""
    if module in seen:
        return
    seen.add(module)
    for following in edges[module]:
        _visit(following, edges, seen, order)
    order.append(module)
