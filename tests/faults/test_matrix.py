"""The table of docs/explanation/faults.md cannot go stale: it has every row, and every test that it names is there."""

import ast

from tests.faults.matrix import ROOT, ROWS, read_matrix


def test_every_row_has_its_tests() -> None:
    rows = read_matrix()
    assert [row.number for row in rows] == list(range(1, ROWS + 1))
    assert all(row.tests for row in rows)


def test_every_test_that_is_named_exists() -> None:
    named = {test for row in read_matrix() for test in row.tests}
    missing = sorted(test for test in named if not exists(test))
    assert not missing


def exists(test: str) -> bool:
    """Return whether a test of this node id is there."""
    path, _, name = test.partition("::")
    file = ROOT / path
    if not file.exists():
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(node, functions) and node.name == name for node in ast.parse(file.read_text()).body)
