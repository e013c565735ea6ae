"""Every statement of the product is understood by the server of this run, whatever its version."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import asyncpg

import apc_agents
import apc_bus
import apc_cli
import apc_client
import apc_log
import apc_minds
import apc_orchestrator
import apc_persister
import apc_web

PACKAGES = (apc_agents, apc_bus, apc_cli, apc_client, apc_log, apc_minds, apc_orchestrator, apc_persister, apc_web)
_STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s")
_UNFILLED = re.compile(r"\{\w*\}")


def _statements() -> Iterator[tuple[str, str]]:
    """Yield every module-level string that is a whole statement: `module.name`, and its text."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(("__main__", "sqlite_effects", ".cold", ".cold_verification")):  # SQLite, DuckDB
                continue
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, str) and _STATEMENT.match(value) and not _UNFILLED.search(value):
                    yield f"{module.name}.{name}", value


async def test_the_server_understands_each_statement(pool: asyncpg.Pool) -> None:
    refused = {}
    async with pool.acquire() as connection:
        for name, statement in _statements():
            try:
                await connection.prepare(statement)
            except asyncpg.PostgresError as error:
                refused[name] = str(error)
    assert refused == {}
