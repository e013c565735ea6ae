"""A docstring of a function begins with a verb: it says what the function does (beyond what ruff's D401 sees)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NO_VERB = frozenset(
    (
        "A After All An Another As At Back Behind Below Blocks Both By Bytes Conversations Control Coordinates Depth "
        "Entries Entry Events Everything Evidence First For From How Idempotent Idempotently In Index Its JSON Keys "
        "Loss Made Means Measured Messages Metadata Milliseconds Names Needs No Nobody None Not Nothing Numbers Of "
        "One Operations Outcome Outcomes Over Packets Plain Predictions Progress Protocols Recipe Retention Rows "
        "Seconds Something Symbolic Tells Templates Text The There Three To Tokens Transfers Two Unexpired User What "
        "Whether Which Who Whoever Whole Whose With Without"
    ).split()
)


def test_a_docstring_begins_with_a_verb() -> None:
    assert list(_strange()) == []


def test_what_is_no_verb_is_found() -> None:
    source = (
        'def one():\n    """Whether it is."""\n\ndef two():\n    """Return it."""\n\ndef three():\n    """(a, b)."""\n'
    )
    assert [node.name for node in _functions(ast.parse(source)) if _is_strange(node)] == ["one", "three"]


def _strange() -> Iterator[str]:
    for file in sorted(ROOT.glob("*/apc_*/**/*.py")):
        for node in _functions(ast.parse(file.read_text(encoding="utf-8"))):
            if _is_strange(node):
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {(ast.get_docstring(node) or '')[:60]}"


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods; a property says what it is, as an attribute does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
            yield node


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = [getattr(one, "id", getattr(one, "attr", "")) for one in node.decorator_list]
    return not {"property", "cached_property"}.isdisjoint(names)


def _is_strange(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    words = (ast.get_docstring(node) or "Return").split()
    return re.fullmatch(r"[A-Z][a-z-]+", words[0].rstrip(".,:;")) is None or words[0].rstrip(".,:;") in NO_VERB
