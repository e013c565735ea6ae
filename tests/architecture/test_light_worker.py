"""What a worker installs and loads: few packages, and of ours only what an agent is made of (agents/README.md)."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.dependency_bounds import requirements

import apc_agents
import apc_bus
import apc_contracts

MOST_DEPENDENCIES = 25
MOST_MODULES = 450
MOST_MODULES_OF_AN_AGENT = 480
"""With what pydantic loads when a program defines its first model."""
HEAVY = frozenset(
    {
        "alembic",
        "cel",
        "cryptography",
        "fastapi",
        "faststream",
        "jsonschema_rs",
        "obstore",
        "opentelemetry",
        "prometheus_client",
        "prompt_toolkit",
        "pydantic_ai",
        "pydantic_settings",
        "sqlalchemy",
        "yaml",
    }
)
AGENT = """
from apc_agents import Agent, HandlerContext, message
from pydantic import BaseModel

@message("question/1")
class Question(BaseModel):
    text: str

desk = Agent("desk", role="desk", swarm="support")

@desk.on(Question)
async def reply(question: Question, ctx: HandlerContext) -> None: ...
"""


def test_a_worker_names_few_dependencies() -> None:
    assert len(requirements()) <= MOST_DEPENDENCIES


@pytest.mark.parametrize(("program", "most"), [("import apc_agents", MOST_MODULES), (AGENT, MOST_MODULES_OF_AN_AGENT)])
def test_an_agent_loads_little(program: str, most: int) -> None:
    modules = modules_of(program)
    assert "apc_agents" in modules
    assert len(modules) <= most
    assert HEAVY & {module.partition(".")[0] for module in modules} == set()


@pytest.mark.parametrize("package", [apc_agents, apc_bus, apc_contracts])
def test_late_names_are_those_that_a_type_checker_reads(package: ModuleType) -> None:
    places = places_of(package)
    assert sorted(places) == sorted(package.__all__)
    for name, module in places.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("package", ["apc_agents", "apc_bus", "apc_contracts"])
def test_names_are_listed_before_they_are_used(package: str) -> None:
    """A name that was used is an attribute; the others must be found as well."""
    code = f"import {package}\nassert set({package}.__all__) <= set(dir({package})), {package}"
    subprocess.run([sys.executable, "-c", code], check=True)


def modules_of(program: str) -> list[str]:
    """Return the modules that a fresh interpreter imports, its own included, as `-X importtime` counts them."""
    command = [sys.executable, "-X", "importtime", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE)


def places_of(package: ModuleType) -> dict[str, str]:
    """Return the names that a package imports for type checkers, each with its module."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    checked = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for block in checked for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
