"""How large files, classes, functions and folders may be, and that a class name has one meaning."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("contracts", "bus", "log", "agents", "orchestrator", "persister", "web", "client", "console", "apps")
FOLDERS = (*PRODUCT, "benchmarks", "examples", "tests")
LARGEST_FILE = 350
LARGEST_CLASS = 250
LARGEST_FUNCTION = 50
MOST_MODULES = 15
RUNS_ALONE = "log/apc_log/offline_verifier.py"
"""The offline verifier is one file, so that it needs no other."""


def test_nothing_is_too_large_or_named_twice() -> None:
    assert sorted(beyond()) == []


def beyond() -> Iterator[str]:
    """Yield what exceeds a bound, or is a class name of several files: kind and place."""
    yield from _full_folders()
    names: dict[str, set[str]] = defaultdict(set)
    for path in _files(PRODUCT):
        place = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > LARGEST_FILE and place != RUNS_ALONE:
            yield f"file {place}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and place != RUNS_ALONE:
                names[node.name].add(place)
            if _lines_of(node) > _bound_of(node):
                yield f"{_kind_of(node)} {place}::{getattr(node, 'name', '')}"
    yield from (f"name {name}" for name, places in names.items() if len(places) > 1)


def _full_folders() -> Iterator[str]:
    modules = Counter(path.parent for path in _files(FOLDERS) if path.name != "__init__.py")
    return (
        f"folder {folder.relative_to(ROOT).as_posix()}" for folder, count in modules.items() if count > MOST_MODULES
    )


def _files(folders: tuple[str, ...]) -> Iterator[Path]:
    return chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders)


def _bound_of(node: ast.AST) -> int:
    return LARGEST_CLASS if isinstance(node, ast.ClassDef) else LARGEST_FUNCTION


def _kind_of(node: ast.AST) -> str:
    return "class" if isinstance(node, ast.ClassDef) else "function"


def _lines_of(node: ast.AST) -> int:
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.end_lineno is None:
        return 0
    return node.end_lineno - node.lineno + 1
