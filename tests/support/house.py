"""Measure the structure of the product: `make house` prints it, `tests/architecture/test_house.py` bounds it.

The figures answer one question: how much must somebody open who follows a subject or a packet? Modules, the share of
lines above the first definition, the median file, the longest chain of imports inside a package, folders that hold few
files, circles, and how many record classes one packet passes through. `Walk` collects the files that a profiler sees
entered.
"""

import ast
import sys
import threading
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from types import FrameType, TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
FEWEST_FILES = 4
"""A folder exists for at least so many files."""
PACKET_FIELDS = frozenset({"packet_id", "session_id", "packet_type"})
"""A class with these fields is a record of a packet."""

PROGRAMS = frozenset({"apc_cli.commands"})
"""Packages whose `__init__` is the program itself, which imports what stands below it."""

Imports = Mapping[str, frozenset[str]]
"""The modules that each module imports, by their dotted names."""


@dataclass(frozen=True, slots=True)
class File:
    """One module of the product; `place` is its path in the repository."""

    place: str
    module: str
    lines: int
    header: int
    """Lines above the first statement that is neither docstring nor import."""
    statements: int
    """Statements that are neither imports nor docstrings, at any depth."""

    @property
    def package(self) -> str:
        """The import package."""
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class House:
    """The figures of one checkout."""

    files: tuple[File, ...]
    chains: Mapping[str, tuple[str, ...]]
    """The longest chain of imports inside each package, from its top."""
    small_folders: tuple[str, ...]
    circles: tuple[tuple[str, ...], ...]
    packet_records: tuple[str, ...]

    @property
    def header_share(self) -> float:
        """Share of all lines that stand above the first definition."""
        return sum(file.header for file in self.files) / sum(file.lines for file in self.files)

    @property
    def median_lines(self) -> float:
        """Median of the files over three lines."""
        return median(file.lines for file in self.files if file.lines > 3)

    @property
    def statements(self) -> int:
        """Statements without imports and docstrings."""
        return sum(file.statements for file in self.files)


def measure() -> House:
    """Measure this checkout."""
    imports = imports_of_all_packages()
    packages = sorted({module.partition(".")[0] for module in imports})
    folders: dict[str, int] = {}
    for path in _paths():
        folders.setdefault(path.parent.relative_to(ROOT).as_posix(), 0)
        folders[path.parent.relative_to(ROOT).as_posix()] += path.name != "__init__.py"
    return House(
        files=tuple(_file(path) for path in _paths()),
        chains={package: longest_chain(imports, package) for package in packages},
        small_folders=tuple(sorted(folder for folder, count in folders.items() if count < FEWEST_FILES)),
        circles=tuple(circles(imports)),
        packet_records=tuple(sorted(_packet_records())),
    )


def _paths() -> list[Path]:
    return sorted(ROOT.glob("*/apc_*/**/*.py"))


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _file(path: Path) -> File:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    body = _tree(path).body
    first = next((node for node in body if not _is_import(node) and not _is_docstring(node)), None)
    header = lines if first is None else _first_line(first) - 1
    statements = sum(
        isinstance(node, ast.stmt) and not _is_import(node) and not _is_docstring(node)
        for node in ast.walk(_tree(path))
    )
    return File(path.relative_to(ROOT).as_posix(), _module_of(path), lines, header, statements)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _packet_records() -> Iterator[str]:
    """Yield the classes that declare the fields of a packet, inherited ones left out."""
    for path in _paths():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.ClassDef):
                fields = {
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                }
                if fields >= PACKET_FIELDS:
                    yield f"{path.relative_to(ROOT).as_posix()}::{node.name}"


def imports_of_all_packages() -> Imports:
    """Return what each module imports, lazy imports and those for type checkers included."""
    files = {_module_of(path): path for path in _paths()}
    modules = frozenset(files)
    imports = {}
    for module, path in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        imports[module] = with_packages(module, imports_of(_tree(path), package, modules), modules)
    return imports


def longest_chain(imports: Imports, package: str) -> tuple[str, ...]:
    """Return the longest chain of imports between modules of one package, from its top."""
    inside = {module for module in imports if module.partition(".")[0] == package}
    found: dict[str, tuple[str, ...]] = {}

    def chain(module: str, above: frozenset[str]) -> tuple[str, ...]:
        if module not in found:
            below = (chain(one, above | {one}) for one in imports[module] & inside - above)
            found[module] = (module, *max(below, key=len, default=()))
        return found[module]

    return max((chain(module, frozenset({module})) for module in sorted(inside)), key=len, default=())


def with_packages(module: str, imported: Set[str], modules: frozenset[str]) -> frozenset[str]:
    """Return also the packages whose `__init__` an import runs on its way, those that `module` itself is in aside.

    The outermost packages do not count: they export the names of all their files, and no file of theirs imports them.
    """
    above = {".".join(parts[:depth]) for parts in map(_parts, imported) for depth in range(2, len(parts))}
    passed = (above & modules) - PROGRAMS
    return frozenset(imported) | frozenset(one for one in passed if not f"{module}.".startswith(f"{one}."))


def _parts(module: str) -> list[str]:
    return module.split(".")


def imports_of(tree: ast.Module, package: str, modules: frozenset[str]) -> frozenset[str]:
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


def circles(imports: Imports) -> Iterator[tuple[str, ...]]:
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


class Walk:
    """Collects the files of the product whose functions run inside the block, on any thread that it starts.

    Args:
        end: a function as `path::name`, whose callers are wanted.
    """

    def __init__(self, end: str = "") -> None:
        self.files: set[str] = set()
        self.hops: tuple[str, ...] = ()
        """The functions of the product that called each other when `end` was entered first, itself the last."""
        self._end = end
        self._places: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        self._beginning = sys._getframe(1).f_code
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>" and (place := self._place_of(frame)):
            self.files.add(place)
            if not self.hops and f"{place}::{frame.f_code.co_name}" == self._end:
                self.hops = tuple(reversed(list(self._callers(frame))))

    def _callers(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None and frame.f_code is not self._beginning:
            if place := self._place_of(frame):
                yield f"{place}::{frame.f_code.co_name}"
            frame = frame.f_back

    def _place_of(self, frame: FrameType) -> str | None:
        file = frame.f_code.co_filename
        if file not in self._places:
            self._places[file] = _place(file)
        return self._places[file]


def _place(file: str) -> str | None:
    """Return the path in the repository of a file of the product, None of any other file."""
    path = Path(file)
    return path.relative_to(ROOT).as_posix() if path in _paths() else None


def print_figures() -> None:
    """Print the figures of this checkout, a line each."""
    house = measure()
    print(f"modules               {len(house.files)}")
    print(f"header share          {house.header_share:.1%}")
    print(f"median file           {house.median_lines:g} lines")
    print(f"statements            {house.statements}")
    print(f"circles               {len(house.circles)}")
    print(f"records of a packet   {len(house.packet_records)}")
    print(f"folders under {FEWEST_FILES} files  {len(house.small_folders)} {' '.join(house.small_folders)}")
    for package, chain in house.chains.items():
        print(f"longest chain of {package:17}{len(chain)}")


if __name__ == "__main__":
    print_figures()
