"""Register contracts: check them here, send them to the gates, wait until the log has them."""

from dataclasses import dataclass
from pathlib import Path

import asyncpg

from apc_bus.port import Bus
from apc_client.registry.agents import publish_in_turn
from apc_contracts.contract.contract import Contract, deployed_contract
from apc_contracts.contract.contract_files import read_contract_folder
from apc_contracts.identity.ids import keyed_id
from apc_contracts.identity.registry_change import MAX_CONTRACT_BYTES, ContractAdded
from apc_log.registry import LoggedContract, read_contracts
from apc_web.errors import InputUnusable


@dataclass(frozen=True, slots=True)
class RegisteredContract:
    """A contract that every shard has, and which revision of its name it is."""

    contract: Contract
    revision: int


async def register_contract(
    bus: Bus, pool: asyncpg.Pool, shards: int, body: bytes, file: Path | str
) -> RegisteredContract:
    """Register the contract that a file holds; sessions that are open keep the revision under which they began.

    The newest file of a name is sent again harmlessly; any other is the next revision.

    Raises:
        ContractInvalid: it cannot be used; names the place.
        InputUnusable: it is too large.
        ShardsUnconfirmed: a shard has not logged it in time; says which.
    """
    contract = registrable(body, file)
    known = {one.name: one for one in await read_contracts(pool)}.get(contract.name)
    change = addition_of(contract, known)
    await publish_in_turn(bus, pool, change, shards)
    return RegisteredContract(contract, change.revision)


async def register_folder(bus: Bus, pool: asyncpg.Pool, shards: int, folder: Path | str) -> None:
    """Register every `*.json` of a folder, in the order of their names; nothing when all are registered.

    Raises:
        ContractInvalid: the folder or a file cannot be used; nothing of it was registered.
        InputUnusable: a file is too large for the registry, or two have the same name.
        ShardsUnconfirmed: as `register_contract`.
    """
    files = read_contract_folder(Path(folder))
    names: dict[str, Path] = {}
    for path, body in files:
        name = registrable(body, path).name
        if name in names:
            raise InputUnusable(f"{path}: {names[name]} has the name {name!r} too: keep one")
        names[name] = path
    for path, body in files:
        await register_contract(bus, pool, shards, body, path)


def registrable(body: bytes, file: Path | str) -> Contract:
    """Return the contract that a file holds. Raises ContractInvalid, and InputUnusable when it is too large."""
    if len(body) > MAX_CONTRACT_BYTES:
        raise InputUnusable(f"{file}: a registered contract has at most {MAX_CONTRACT_BYTES} bytes: shorten it")
    return deployed_contract(body, file)


def addition_of(contract: Contract, known: LoggedContract | None) -> ContractAdded:
    """Return the change that registers a contract; the newest revision again, if that is what it is."""
    if known is not None and known.document.encode() == contract.body:
        revision = known.revision
    else:
        revision = 1 if known is None else known.revision + 1
    change_id = keyed_id("contract", contract.name, str(revision), contract.hash.hex())
    return ContractAdded(change_id=change_id, name=contract.name, revision=revision, document=contract.body.decode())
