"""Fixtures say what they give, and those who use them say it too: mypy then reads the tests as it reads the product."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
UNTYPED = frozenset({"Any", "AsyncIterator[Any]", "Iterator[Any]"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


def test_no_fixture_is_of_any_type() -> None:
    assert list(_untyped()) == []


def test_an_untyped_use_is_found() -> None:
    source = '@pytest.mark.parametrize("chance", [1])\ndef test_one(house: Any, chance: Any) -> None: ...\n'
    (one,) = _functions(ast.parse(source))
    assert list(_loose_parameters(one, {"house", "chance"})) == ["house"]


def _untyped() -> Iterator[str]:
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(TESTS.rglob("*.py"))}
    given = {file: {one.name: one for one in _functions(tree) if _is_fixture(one)} for file, tree in trees.items()}
    for file, tree in trees.items():
        around = [file, *(folder / "conftest.py" for folder in file.parents)]
        names = {name for place in around for name in given.get(place, ())}
        for function in _functions(tree):
            where = f"{file.relative_to(TESTS)}:{function.lineno} {function.name}"
            if _is_fixture(function) and (function.returns is None or ast.unparse(function.returns) in UNTYPED):
                yield where
            if _is_fixture(function) or function.name.startswith("test_"):
                yield from (f"{where}: {name}" for name in _loose_parameters(function, names))


def _loose_parameters(function: Function, fixtures: set[str]) -> Iterator[str]:
    """Yield the parameters of any type that a fixture fills; what `parametrize` fills may be anything."""
    decorators = [text for one in function.decorator_list for text in _strings(one)]
    parametrized = {name.strip() for text in decorators for name in text.split(",")}
    for parameter in (*function.args.args, *function.args.kwonlyargs):
        is_loose = parameter.annotation is not None and ast.unparse(parameter.annotation) == "Any"
        if is_loose and parameter.arg in fixtures - parametrized:
            yield parameter.arg


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _is_fixture(function: Function) -> bool:
    return any("fixture" in ast.unparse(one).split("(")[0] for one in function.decorator_list)


def _strings(node: ast.expr) -> Iterator[str]:
    return (one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))
