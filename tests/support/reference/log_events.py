"""The events that the services log, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.reference.markdown import code, table

ROOT = Path(__file__).parents[3]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"_log", "log", "_logger", "logger"}


def event_table() -> str:
    """Return the table of log events: name, levels, keys and the packages that log them."""
    found: dict[str, tuple[set[str], set[str], set[str]]] = {}
    for package, name, level, keys in _events():
        levels, all_keys, packages = found.setdefault(name, (set(), set(), set()))
        levels.add(level)
        all_keys.update(keys)
        packages.add(package)
    rows = [
        (code(name), ", ".join(sorted(levels)), ", ".join(sorted(keys)), ", ".join(sorted(packages)))
        for name, (levels, keys, packages) in sorted(found.items())
    ]
    return table(("event", "level", "its own keys", "package"), rows)


def _events() -> Iterator[tuple[str, str, str, list[str]]]:
    for file in sorted(ROOT.glob("*/apc_*/**/*.py")):
        package = file.relative_to(ROOT).parts[1]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and _is_logging(node.func)
                and node.args
            ):
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    keys = [keyword.arg for keyword in node.keywords if keyword.arg and keyword.arg != "exc_info"]
                    yield package, first.value, node.func.attr, keys


def _is_logging(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LEVELS
        and isinstance(function.value, ast.Name | ast.Attribute)
        and (function.value.id if isinstance(function.value, ast.Name) else function.value.attr) in LOGGERS
    )
