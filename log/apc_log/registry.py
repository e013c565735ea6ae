"""The registry as the log holds it: view `agents`, which follows from the logged changes."""

from collections.abc import Iterable
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.identity.registry import Registration, Right
from apc_contracts.vocabulary import PacketType

_AGENTS = """
SELECT agent_id, broker_user, role, swarm_id, rights, handles, public_keys, is_revoked
FROM apc_log.agents ORDER BY agent_id
"""
_CHANGES = "SELECT change_id FROM apc_log.registry_events WHERE shard = $1"
_RECORDED = "SELECT count(DISTINCT (shard, change_id)) FROM apc_log.registry_events WHERE change_id = ANY($1)"


async def read_registry(pool: asyncpg.Pool) -> dict[str, Registration]:
    """Return every agent that was ever registered, revoked ones too, by its id."""
    return {row["agent_id"]: _registration(row) for row in await pool.fetch(_AGENTS)}


async def registered_agents(pool: asyncpg.Pool) -> list[Registration]:
    """Return every agent that is registered and not revoked."""
    return [one for one in (await read_registry(pool)).values() if not one.is_revoked]


async def read_changes(pool: asyncpg.Pool, shard: int) -> set[UUID]:
    """Return the ids of the changes that this shard has logged."""
    return {row["change_id"] for row in await pool.fetch(_CHANGES, shard)}


async def count_recorded(pool: asyncpg.Pool, changes: Iterable[UUID]) -> int:
    """Return how often these changes are in the log, each counted once for every shard."""
    recorded: int = await pool.fetchval(_RECORDED, list(changes))
    return recorded


def _registration(row: asyncpg.Record) -> Registration:
    return Registration(
        agent_id=row["agent_id"],
        broker_user=row["broker_user"],
        role=row["role"],
        swarm_id=row["swarm_id"],
        rights=frozenset(Right(right) for right in row["rights"]),
        handles=frozenset(PacketType(packet_type) for packet_type in row["handles"]),
        public_keys=orjson.loads(row["public_keys"]),
        is_revoked=row["is_revoked"],
    )
