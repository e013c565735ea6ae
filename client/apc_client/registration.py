"""Changes of the registry: each is sent to every shard, and awaited until the log of every shard has it.

Agents and people first; then schemas, contracts, the operator of a new system, and the client of a run.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
from pydantic import TypeAdapter, ValidationError

from apc_agents.keys import AgentKey, find_key
from apc_bus import headers
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError
from apc_bus.port import Bus, Message, Publication
from apc_bus.settings import DeploymentSettings, WorkerSettings
from apc_bus.telemetry import get_logger
from apc_bus.topology import RECEIPTS, AgentQueues, Topology, build_topology
from apc_client.errors import ShardsUnconfirmed
from apc_client.operator import OPERATOR, client_registration, operator_person
from apc_client.sending import until
from apc_contracts.contract.contract import (
    Contract,
    deployed_contract,
    load_contract,
    read_contract_file,
    read_contract_folder,
    task_contract,
)
from apc_contracts.contract_model import SchemaId
from apc_contracts.errors import ContractInvalid, InputUnusable, SchemaUnusable, ServiceAway
from apc_contracts.identity.ids import keyed_id, new_packet_id
from apc_contracts.identity.registry import SPEAKS_OLDEST, Kind, Registration
from apc_contracts.identity.registry_change import (
    MAX_CONTRACT_BYTES,
    AgentAdded,
    AgentRevoked,
    AnyChange,
    ContractAdded,
    SchemaAdded,
    encode_registry_change,
)
from apc_contracts.identity.signing import new_private_key
from apc_contracts.replay.examination import examine, holds_overlay
from apc_contracts.schemas import RegisteredSchema, register_schema
from apc_log.registry import (
    LoggedContract,
    count_recorded,
    read_contracts,
    read_registry,
    read_schemas,
    registered_agents,
    shards_with,
)

CONFIRM_PATIENCE = timedelta(seconds=10)
"""How long each of shard 0 and the others may take to log a schema or a contract."""
LOG_PATIENCE = timedelta(seconds=8)
"""How long to wait until orchestrator and persister have applied a change."""
CHANGE_PATIENCE = timedelta(milliseconds=5)
"""How much longer for each further change of a batch, in each shard."""


def addition(registration: Registration) -> AgentAdded:
    """Return the change that registers an agent, or replaces its registration. Raises pydantic's ValidationError."""
    return AgentAdded(
        change_id=new_packet_id(),
        agent_id=registration.agent_id,
        broker_user=registration.broker_user,
        role=registration.role,
        swarm_id=registration.swarm_id,
        rights=tuple(sorted(registration.rights)),
        handles=tuple(sorted(registration.handles)),
        public_keys=dict(registration.public_keys),
        schemas=tuple(sorted(registration.schemas)) or None,
        kind=None if registration.kind is Kind.AGENT else registration.kind,
        via=tuple(sorted(registration.via)) or None,
        speaks=None if registration.speaks == SPEAKS_OLDEST else cast(Any, tuple(sorted(registration.speaks))),
        host=registration.host,
        allow_shared=registration.allow_shared or None,
    )


async def with_keys(pool: asyncpg.Pool, described: Sequence[Registration]) -> list[Registration]:
    """Return agents as their code describes them, with their keys, which code does not name.

    Keys in the registry stay; the key with which a worker of this environment signs is added. Raises AgentKeyUnusable.
    """
    known = {agent.agent_id: agent.public_keys for agent in await registered_agents(pool)}
    settings = WorkerSettings()
    complete = []
    for agent in described:
        key = find_key(settings, agent.agent_id)
        own = {} if key is None else {key.key_id: key.public_key}
        complete.append(replace(agent, public_keys={**known.get(agent.agent_id, {}), **own}))
    return complete


def queues_of(registration: Registration) -> AgentQueues:
    """Return the inbox that a registered agent needs."""
    return AgentQueues(
        registration.agent_id,
        registration.swarm_id,
        registration.handles,
        registration.broker_user,
        registration.host,
    )


def inboxes_of(registered: Iterable[Registration]) -> list[AgentQueues]:
    """Return the inboxes that registered agents need; the client of a run has none."""
    return [queues_of(one) for one in registered if not one.is_run_client]


async def publish_changes(bus: Bus, changes: Sequence[AnyChange], shards: int) -> None:
    """Send changes to every shard, as the operator who owns this bus. Raises BusError."""
    await _publish(bus, changes, range(shards))


async def publish_in_turn(bus: Bus, pool: asyncpg.Pool, change: AnyChange, shards: int) -> None:
    """Send a change to the gate of shard 0, which decides; when its log has the change, send it to the others.

    Repeating is safe: a shard that has the change does nothing.

    Raises:
        BusError: the broker did not take it.
        ShardsUnconfirmed: some shards have not logged it in time; names them.
    """
    for group in (range(1), range(1, shards)):
        await _publish(bus, [change], group)

        async def have_it(wanted: range = group) -> bool:
            return set(wanted) <= await shards_with(pool, change.change_id)

        try:
            await until(have_it, CONFIRM_PATIENCE)
        except TimeoutError as error:
            missing = ", ".join(map(str, sorted(set(range(shards)) - await shards_with(pool, change.change_id))))
            raise ShardsUnconfirmed(
                f"{change.subject} was sent, and these shards have not confirmed it after "
                f"{CONFIRM_PATIENCE.total_seconds():g} s: {missing}. See `apc packet refused`; repeat the command"
            ) from error


async def _publish(bus: Bus, changes: Sequence[AnyChange], shards: Iterable[int]) -> None:
    publications = [
        Publication(
            RECEIPTS,
            str(shard),
            # A separate id for each shard: one id must not be in flight twice on a channel.
            Message(
                body,
                message_id=str(new_packet_id()),
                type=headers.TYPE_REGISTRY,
                user_id=bus.user,
            ),
        )
        for body in map(encode_registry_change, changes)
        for shard in shards
    ]
    for outcome in await bus.publish_all(publications):
        if outcome is not None:
            raise outcome


async def wait_until_recorded(
    pool: asyncpg.Pool, changes: Sequence[AnyChange], shards: int, patience: timedelta
) -> None:
    """Wait until every shard has logged the changes: the registry table then holds them.

    Raises:
        ServiceAway: not within `patience`, of which a batch has more; the changes wait in the orchestrator's queues and
            take effect later.
    """
    ids = [change.change_id for change in changes]
    patience += len(ids) * shards * CHANGE_PATIENCE

    async def is_recorded() -> bool:
        # A shard logs them in their order: only once each has the last one, the database counts all of them.
        for asked in (ids[-1:], ids):
            if await count_recorded(pool, asked) < len(asked) * shards:
                return False
        return True

    try:
        await until(is_recorded, patience)
    except TimeoutError as error:
        raise ServiceAway(
            f"the change was sent, but is not in the log after {patience.total_seconds():g} s: do `apc serve "
            "orchestrator` and `apc serve persister` run? It takes effect as soon as they do"
        ) from error


# Register schemas: check them here, send them to the orchestrators, wait until the log has them.

_schema_ids: TypeAdapter[str] = TypeAdapter(SchemaId)


async def register_schemas(
    bus: Bus, pool: asyncpg.Pool, shards: int, documents: Mapping[str, Mapping[str, Any]]
) -> list[RegisteredSchema]:
    """Register schemas by their id, such as finding/1; those that the log has already are sent again harmlessly.

    Raises:
        InputUnusable: one is unsafe, or its version is registered with other content.
        ShardsUnconfirmed: a shard has not logged it in time; says which.
    """
    known, made = await read_schemas(pool), []
    for schema_id, document in documents.items():
        schema = usable_schema(schema_id, document)
        if schema_id in known and known[schema_id].hash != schema.hash:
            raise InputUnusable(f"the schema {schema_id} is registered with other content: give it a new version")
        made.append(schema)
    for schema in made:
        await publish_in_turn(bus, pool, schema_addition(schema), shards)
    return made


def usable_schema(schema_id: str, document: Any) -> RegisteredSchema:
    """Return a schema that is safe to judge by. Raises InputUnusable with the place of the mistake."""
    try:
        _schema_ids.validate_python(schema_id)
        return register_schema(schema_id, document)
    except ValidationError as error:
        raise InputUnusable(f"{schema_id!r} is no name and version: write it like finding/1") from error
    except SchemaUnusable as error:
        raise InputUnusable(f"schema {schema_id} at {error.place}: {error.message}") from error


def schema_addition(schema: RegisteredSchema) -> SchemaAdded:
    """Return the change that registers a schema; its id follows from the content, so that repeating is safe."""
    change_id = keyed_id("schema", schema.schema_id, schema.hash.hex())
    return SchemaAdded(change_id=change_id, schema_id=schema.schema_id, document=schema.document)


# Register contracts: check them here, send them to the orchestrators, wait until the log has them.


@dataclass(frozen=True, slots=True)
class RegisteredContract:
    """A contract that every shard has, and which revision of its name it is."""

    contract: Contract
    revision: int


async def register_contract(
    bus: Bus, pool: asyncpg.Pool, shards: int, body: bytes, file: Path | str
) -> RegisteredContract:
    """Register the contract that a file holds; sessions that are open keep the revision under which they began.

    The newest file of a name is sent again harmlessly; any other is the next revision. An overlay is written out over
    its parent.

    Raises:
        ContractInvalid: it cannot be used; names the place.
        InputUnusable: it is too large.
        ShardsUnconfirmed: a shard has not logged it in time; says which.
    """
    whole = await _written_out(pool, body, file) if holds_overlay(body) else body
    contract = registrable(whole, file)
    known = {one.name: one for one in await read_contracts(pool)}.get(contract.name)
    change = contract_addition(contract, known)
    await publish_in_turn(bus, pool, change, shards)
    return RegisteredContract(contract, change.revision)


async def register_file(bus: Bus, pool: asyncpg.Pool, shards: int, file: Path | str) -> RegisteredContract:
    """Register the contract in a file, such as that of a team, whose schemas are registered already.

    Raises:
        ContractInvalid: it cannot be read or used; names the place.
        InputUnusable, ShardsUnconfirmed: as `register_contract`.
    """
    try:
        body = read_contract_file(Path(file))
    except OSError as error:
        raise ContractInvalid("$", f"cannot read it: {error.strerror}", str(file)) from error
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(file)) from error
    return await register_contract(bus, pool, shards, body, file)


async def _written_out(pool: asyncpg.Pool, body: bytes, file: Path | str) -> bytes:
    """Return the whole contract that an overlay makes of its parent, by the schemas that are registered."""
    registered = {one.name: one.document.encode() for one in await read_contracts(pool)}
    packaged = {one.name: one.body for one in (load_contract(), task_contract())}
    schemas = {schema_id: one.document for schema_id, one in (await read_schemas(pool)).items()}
    # In another process: a hostile file must not stall the loop, nor fill the memory.
    examined = await asyncio.to_thread(examine, body, file, packaged | registered, schemas)
    return examined.contract.body


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


def contract_addition(contract: Contract, known: LoggedContract | None) -> ContractAdded:
    """Return the change that registers a contract; the newest revision again, if that is what it is."""
    if known is not None and known.document.encode() == contract.body:
        revision = known.revision
    else:
        revision = 1 if known is None else known.revision + 1
    change_id = keyed_id("contract", contract.name, str(revision), contract.hash.hex())
    return ContractAdded(change_id=change_id, name=contract.name, revision=revision, document=contract.body.decode())


# Register the person in whose name the commands and the web console of a new system act.


async def register_operator(
    bus: Bus, pool: asyncpg.Pool, shards: int, name: str | None, patience: timedelta | None = LOG_PATIENCE
) -> None:
    """Register this person for the broker user of the bus, unless the name was ever registered: revoked stays revoked.

    Args:
        patience: how long to wait until the log has it; None = not at all.

    Raises:
        BusError: the broker did not take the registration.
        ServiceAway: the log did not have it in time.
    """
    if (name or OPERATOR) in await read_registry(pool):
        return
    change = addition(operator_person(name or OPERATOR, bus.user))
    await publish_changes(bus, [change], shards)
    if patience is not None:
        await wait_until_recorded(pool, [change], shards, patience)


# The client of a run: the agent in whose name a run starts its sessions, registered while the run lasts.

RECORD_PATIENCE = timedelta(seconds=20)
"""How long to wait until every shard has logged the client."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunClient:
    """A registered client, and the key with which it signs; the key ends with the process."""

    registration: Registration
    key: AgentKey


@asynccontextmanager
async def registered_client(
    bus: Bus,
    pool: asyncpg.Pool,
    shards: int,
    *,
    unless_failed: Callable[[Coroutine[Any, Any, None]], Awaitable[None]] | None = None,
) -> AsyncIterator[RunClient]:
    """Register a client under a new id for the broker user of this bus; at the end revoke it, and nothing else.

    Args:
        unless_failed: waits for the log, and raises the error of a service that can no longer write it.

    Raises:
        BusError: the broker does not take the registration.
        ServiceAway: the log did not have it in time.
    """
    key = AgentKey(new_private_key())
    registered = replace(client_registration(bus.user), public_keys={key.key_id: key.public_key})

    async def record(change: AnyChange) -> None:
        await publish_changes(bus, [change], shards)
        waiting = wait_until_recorded(pool, [change], shards, RECORD_PATIENCE)
        await (waiting if unless_failed is None else unless_failed(waiting))

    await record(addition(registered))
    try:
        yield RunClient(registered, key)
    finally:
        try:
            await record(AgentRevoked(change_id=new_packet_id(), agent_id=registered.agent_id))
        except (BusError, ServiceAway, *DATABASE_AWAY) as error:
            # The outcome of the run is worth more than this; the registration is there to be seen.
            log.warning("client_not_revoked", agent_id=registered.agent_id, error=str(error))


def topology_of(settings: DeploymentSettings, agents: Sequence[AgentQueues] = ()) -> Topology:
    """Return the topology for these shards and agents; the contract limits the size of an inbox.

    Raises:
        ContractInvalid: the contract file of the settings cannot be used.
        TopologyInvalid: as `build_topology`.
    """
    bound = load_contract(settings.contract).limits.outstanding_deliveries
    return build_topology(settings.shards, agents, bound=bound)
