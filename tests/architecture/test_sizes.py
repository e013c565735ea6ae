"""How large files, functions and signatures may be. Files: an alarm, not a target; a file is one subject."""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("contracts", "bus", "log", "agents", "orchestrator", "persister", "web", "client", "doors", "cli", "apps")
LARGEST_FILE = 800
LARGEST_FUNCTION = 50
MOST_POSITIONAL = 7
RUNS_ALONE = "log/apc_log/offline_verifier.py"
"""The offline verifier is one file, so that it needs no other."""


def test_nothing_is_too_large() -> None:
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
    """Yield what exceeds a bound: kind and place."""
    for path in _files(PRODUCT):
        place = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > LARGEST_FILE and place != RUNS_ALONE:
            yield f"file {place}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if _lines_of(node) > LARGEST_FUNCTION:
                    yield f"function {place}::{node.name}"
                if _positional(node) > MOST_POSITIONAL:
                    yield f"parameters {place}::{node.name}"


def _files(folders: tuple[str, ...]) -> Iterator[Path]:
    return chain.from_iterable((ROOT / folder).rglob("*.py") for folder in folders)


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a call may give by position; options of commands and constructors do not count."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    is_command = any(isinstance(one, ast.Attribute) and one.attr in ("command", "callback") for one in decorators)
    if is_command or node.name == "__init__":
        return 0
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1
