"""The client of a run: the agent in whose name a run starts its sessions, registered while the run lasts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import asyncpg
import structlog

from apc_agents.keys import AgentKey
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import BusError
from apc_bus.port import Bus
from apc_client.operator import client_registration
from apc_client.registry.agents import addition, publish_changes, wait_until_recorded
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.identity.registry_change import AgentRevoked, AnyChange
from apc_contracts.identity.signing import new_private_key
from apc_web.errors import ServiceAway

RECORD_PATIENCE = timedelta(seconds=20)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunClient:
    """A registered client, and the key with which it signs; the key ends with the process."""

    registration: Registration
    key: AgentKey


@asynccontextmanager
async def registered_client(bus: Bus, pool: asyncpg.Pool, shards: int) -> AsyncIterator[RunClient]:
    """Register a client under a new id for the broker user of this bus; at the end revoke it, and nothing else.

    Raises:
        BusError: the broker does not take the registration.
        ServiceAway: the log did not have it in time.
    """
    key = AgentKey(new_private_key())
    registered = replace(client_registration(bus.user), public_keys={key.key_id: key.public_key})
    await _record(bus, pool, shards, addition(registered))
    try:
        yield RunClient(registered, key)
    finally:
        try:
            await _record(bus, pool, shards, AgentRevoked(change_id=new_packet_id(), agent_id=registered.agent_id))
        except (BusError, ServiceAway, *DATABASE_AWAY) as error:
            # The outcome of the run is worth more than this; the registration is there to be seen.
            log.warning("client_not_revoked", agent_id=registered.agent_id, error=str(error))


async def _record(bus: Bus, pool: asyncpg.Pool, shards: int, change: AnyChange) -> None:
    await publish_changes(bus, [change], shards)
    await wait_until_recorded(pool, [change], shards, RECORD_PATIENCE)
