"""What the product imports is declared, and what is declared names versions that are tested."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from tests.dependency_bounds import lowest, requirements

from apc_contracts.errors import EXTRA_OF

ROOT = Path(__file__).parents[1]
COMPONENTS = (
    "contracts",
    "bus",
    "log",
    "agents",
    "orchestrator",
    "persister",
    "web",
    "client",
    "doors",
    "cli",
    "apps",
    "migrations",
)
EXTRAS = (
    "server",
    "embedded",
    "automl",
    "otel",
    "llm",
    "langgraph",
    "openai-agents",
    "a2a",
    "mcp",
    "faststream",
    "archive",
)
INTERNALS = ("aio-pika", "aiormq", "faststream", "pamqp", "yarl")
"""Libraries of which the bus uses more than they promise."""


def test_every_import_is_a_declared_dependency() -> None:
    own = {path.name for component in COMPONENTS for path in (ROOT / component).iterdir() if path.is_dir()}
    declared = {canonicalize_name(one.name) for extra in (None, *EXTRAS) for one in requirements(extra)}
    distributions = packages_distributions()
    undeclared = {
        module: sorted(files)
        for module, files in _imports().items()
        if module not in sys.stdlib_module_names | own
        and not declared & {canonicalize_name(name) for name in distributions.get(module, [module])}
    }
    assert undeclared == {}


def test_a_library_that_is_missing_leads_to_its_extra() -> None:
    distributions = packages_distributions()
    brought = {extra: {canonicalize_name(one.name) for one in requirements(extra)} - {"apc-bus"} for extra in EXTRAS}
    wrong = {
        module: extra
        for module, extra in EXTRA_OF.items()
        if module in distributions
        and module != "openai"  # an extra of pydantic-ai-slim
        and not brought[extra] & {canonicalize_name(name) for name in distributions[module]}
    }
    always = {canonicalize_name(one.name) for one in requirements(None)}
    imported = {
        module
        for module in set(_imports()) & set(distributions)
        if not always & {canonicalize_name(name) for name in distributions[module]}
        and any(brought[extra] & {canonicalize_name(name) for name in distributions[module]} for extra in EXTRAS)
    }
    assert (wrong, imported - set(EXTRA_OF)) == ({}, set())


def test_the_table_of_extras_has_every_extra() -> None:
    table = (ROOT / "agents" / "README.md").read_text()
    assert {name for name in EXTRAS if f"| `{name}` |" in table} == set(EXTRAS) == set(EXTRA_OF.values())


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("apc_agents.faststream", "faststream", "faststream"),
        ("apc_minds.pydantic_ai", "pydantic_ai", "llm"),
        ("apc_minds.langgraph", "langgraph", "langgraph"),
        ("apc_minds.openai_agents", "agents", "openai-agents"),
    ],
)
def test_a_module_whose_extra_is_missing_says_how_to_install_it(module: str, library: str, extra: str) -> None:
    line = f"import sys; sys.modules[{library!r}] = None; import {module}"
    ended = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.splitlines()[-1] == (
        f"apc_contracts.errors.ExtraMissing: this needs {library}, which is not installed: "
        f"pip install 'apc-bus[{extra}]'"
    )


def test_each_dependency_has_a_lower_bound() -> None:
    assert all(lowest(one) for one in requirements())


def test_what_is_used_beyond_its_promises_has_an_upper_bound() -> None:
    declared = [one for extra in (None, *EXTRAS) for one in requirements(extra)]
    bounded = {canonicalize_name(one.name) for one in declared if any(part.operator == "<" for part in one.specifier)}
    assert bounded >= set(INTERNALS)


def test_the_tested_versions_are_allowed() -> None:
    pinned = dict(line.split("==", 1) for line in _constraints() if "==" in line)
    wrong = [str(one) for one in requirements() if one.specifier.contains(pinned[canonicalize_name(one.name)]) is False]
    assert wrong == []


def _constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [
        re.sub(r"^[^=]+", lambda name: canonicalize_name(name[0]), line) for line in lines if not line.startswith("#")
    ]


def _imports() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for component in COMPONENTS:
        for path in (ROOT / component).rglob("*.py"):
            for module in _modules(ast.parse(path.read_text())):
                found.setdefault(module.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    return found


def _modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
