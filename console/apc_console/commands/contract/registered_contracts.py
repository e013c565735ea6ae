"""`apc contract`: register the contract of a file, and read those of the registry."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from apc_bus.settings import BusSettings
from apc_client.registration import RegisteredContract, register_contract, registrable
from apc_console.connections.broker import open_bus
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.files import read_bytes
from apc_log.registry import read_contracts


async def register_file(file: Path) -> RegisteredContract:
    """Register the contract in a file. Raises what register_contract raises."""
    body = read_bytes(file)
    registrable(body, file)
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        return await register_contract(bus, pool, settings.shards, body, file)


async def contract_rows() -> list[dict[str, Any]]:
    """Return the newest revision of each registered contract, by name."""
    async with open_log() as pool:
        found = await read_contracts(pool)
    return [
        {"contract": one.name, "revision": one.revision, "sha256": sha256(one.document.encode()).hexdigest()}
        for one in sorted(found, key=lambda one: one.name)
    ]


async def contract_text(name: str) -> str:
    """Return the file of a registered contract. Raises InputUnusable without it."""
    async with open_log() as pool:
        found = {one.name: one for one in await read_contracts(pool)}.get(name)
    if found is None:
        raise InputUnusable(
            f"no contract {name} is registered: `apc contract list` shows those that are; `apc contract explain` knows "
            "also the packaged ones and those of APC_CONTRACTS"
        )
    return found.document
