"""The public names of the Python packages, by package."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from tests.support.reference.markdown import code, one_line, table

PACKAGES = ("apc_agents", "apc_client", "apc_minds.llm", "apc_minds.pydantic_ai", "apc_contracts", "apc_bus")
"""Those whose names are listed."""


def name_tables() -> str:
    """Return one section for each package."""
    return "\n\n".join(_section(package) for package in PACKAGES)


def _section(package: str) -> str:
    module = importlib.import_module(package)
    first = one_line((inspect.getdoc(module) or "").partition("\n\n")[0])
    return f"## {package}\n\n{first}\n\n{table(('name', 'what'), _rows(module))}"


def _rows(module: Any) -> Iterator[tuple[str, str]]:
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield code(name), one_line((inspect.getdoc(value) or "").partition("\n\n")[0])
