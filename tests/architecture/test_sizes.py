"""How large files, classes, functions, signatures and folders may be, and that a class name has one meaning."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("contracts", "bus", "log", "agents", "orchestrator", "persister", "web", "client", "console", "apps")
FOLDERS = (*PRODUCT, "benchmarks", "examples", "tests")
LARGEST_FILE = 800
LARGEST_CLASS = 400
LARGEST_FUNCTION = 50
MOST_POSITIONAL = 7
MOST_MODULES = 20
RUNS_ALONE = "log/apc_log/offline_verifier.py"
"""The offline verifier is one file, so that it needs no other."""


def test_nothing_is_too_large_or_named_twice() -> None:
    assert sorted(beyond()) == []


@pytest.mark.parametrize(
    ("signature", "count"),
    [
        ("def f(a, b, /, c, *, d): ...", 3),
        ("async def f(self, a): ...", 1),
        ("def __init__(self, a, b): ...", 0),
        ("@app.command()\ndef f(a, b): ...", 0),
        ("@app.get('/')\ndef f(a, b): ...", 2),
    ],
)
def test_positional_parameters_are_counted(signature: str, count: int) -> None:
    (node,) = ast.parse(signature).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert _positional(node) == count


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
            if isinstance(node, ast.ClassDef):
                names[node.name].add(place)
            if _lines_of(node) > _bound_of(node):
                yield f"{_kind_of(node)} {place}::{getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _positional(node) > MOST_POSITIONAL:
                yield f"parameters {place}::{node.name}"
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


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a call may give by position; options of commands and constructors do not count."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    is_command = any(isinstance(one, ast.Attribute) and one.attr in ("command", "callback") for one in decorators)
    if is_command or node.name == "__init__":
        return 0
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _kind_of(node: ast.AST) -> str:
    return "class" if isinstance(node, ast.ClassDef) else "function"


def _lines_of(node: ast.AST) -> int:
    if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.end_lineno is None:
        return 0
    return node.end_lineno - node.lineno + 1
