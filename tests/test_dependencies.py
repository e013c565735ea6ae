"""What the product imports is declared, and what is declared names versions that are tested."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from tests.dependency_bounds import lowest, requirements

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
    "cli",
    "apps",
    "migrations",
)
EXTRAS = ("server", "embedded", "automl", "otel", "llm")
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


def test_each_dependency_has_a_lower_bound() -> None:
    assert all(lowest(one) for one in requirements())


def test_what_is_used_beyond_its_promises_has_an_upper_bound() -> None:
    bounded = {
        canonicalize_name(one.name) for one in requirements() if any(part.operator == "<" for part in one.specifier)
    }
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
