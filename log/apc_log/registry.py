"""The registry as the log holds it: agents, people, schemas, contracts."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.identity.registry import SPEAKS_OLDEST, Kind, Registration
from apc_contracts.identity.registry_change import SCHEMA_SUBJECT, AnyChange, HostChanged, parse_logged_change
from apc_contracts.schemas import RegisteredSchema, known_schema
from apc_contracts.vocabulary import PacketType, Right

# Of each agent the change that view `agents` shows, and each schema as shard 0 has it, or the first shard that does.
_LOGGED = """
SELECT event.shard, event.seq, event.agent_id, event.change, event.change ->> 'action' AS action,
       count(*) OVER (PARTITION BY event.agent_id, event.shard) AS changes
FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard) WHERE event.seq <= tree.tree_size
"""
ACCEPTED = f"""
SELECT DISTINCT ON (agent_id) agent_id, change -> 'schemas' AS schemas, change -> 'speaks' AS speaks,
       change ->> 'host' AS host, coalesce((change ->> 'allow_shared')::boolean, false) AS allow_shared
FROM ({_LOGGED}) AS logged WHERE action = 'add' ORDER BY agent_id, changes DESC, shard, seq DESC
"""
# One question: an agent that registers between two would stand in one answer only.
_AGENTS = f"""
SELECT agent.agent_id, broker_user, role, swarm_id, rights, handles, public_keys, is_revoked, schemas, speaks, host,
       coalesce(allow_shared, false) AS allow_shared,
       event.change ->> 'kind' AS kind,
       ARRAY(SELECT jsonb_array_elements_text(coalesce(event.change -> 'via', '[]'))) AS via
FROM apc_log.agents AS agent
LEFT JOIN ({ACCEPTED}) AS accepted USING (agent_id)
LEFT JOIN LATERAL (
    SELECT change FROM apc_log.registry_events AS one WHERE one.change_id = agent.change_id LIMIT 1
) AS event ON true ORDER BY agent.agent_id
"""
_SWARMS = "SELECT agent_id, swarm_id FROM apc_log.agents WHERE agent_id = ANY ($1)"
_SCHEMAS = f"""
SELECT DISTINCT ON (agent_id) change ->> 'schema' AS schema_id, change -> 'document' AS document
FROM ({_LOGGED}) AS logged WHERE action = 'schema' AND ($1::text[] IS NULL OR agent_id = ANY ($1))
ORDER BY agent_id, shard, seq
"""
_CONTRACTS = f"""
SELECT DISTINCT ON (agent_id) change ->> 'name' AS name, (change ->> 'revision')::bigint AS revision,
       change ->> 'document' AS document
FROM ({_LOGGED}) AS logged WHERE action = 'contract' ORDER BY agent_id, (change ->> 'revision')::bigint DESC, shard
"""
# Of each host the newest change, which shard 0 alone logs.
_HOSTS = """
SELECT DISTINCT ON (event.agent_id) event.change ->> 'host' AS host,
       event.change ->> 'presence' = 'appeared' AS is_present
FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard)
WHERE event.shard = 0 AND event.change ->> 'action' = 'host' AND event.seq <= tree.tree_size
ORDER BY event.agent_id, event.seq DESC
"""
_CHANGES = "SELECT change_id FROM apc_log.registry_events WHERE shard = $1 AND change ->> 'action' <> 'host'"
_CHANGES_OF = """
SELECT change_id, change::text AS change FROM apc_log.registry_events
WHERE shard = $1 AND change ->> 'action' <> 'host' ORDER BY seq
"""
_KNOWN = """
SELECT DISTINCT change_id FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard)
WHERE change_id = ANY ($1) AND event.seq <= tree.tree_size AND shard <> $2
"""
_SHARDS = "SELECT DISTINCT shard FROM apc_log.registry_events WHERE change_id = $1"
_RECORDED = "SELECT count(*) FROM apc_log.registry_events WHERE change_id = ANY($1)"


async def read_registry(pool: asyncpg.Pool) -> dict[str, Registration]:
    """Return every agent that was ever registered, revoked ones too, by its id."""
    return {row["agent_id"]: _registration(row) for row in await pool.fetch(_AGENTS)}


async def read_swarms(pool: asyncpg.Pool, ids: Iterable[str]) -> dict[str, str]:
    """Return the registered swarm of these agents by their id; unknown ones are left out."""
    return {row["agent_id"]: row["swarm_id"] for row in await pool.fetch(_SWARMS, list(ids))}


async def read_schemas(pool: asyncpg.Pool, ids: Iterable[str] | None = None) -> dict[str, RegisteredSchema]:
    """Return the registered schemas of these ids by their id; None = every one."""
    rows = await pool.fetch(_SCHEMAS, None if ids is None else [SCHEMA_SUBJECT + one for one in ids])
    return {row["schema_id"]: known_schema(row["schema_id"], orjson.loads(row["document"])) for row in rows}


@dataclass(frozen=True, slots=True)
class LoggedContract:
    """The newest revision of a registered contract; `document` is the file's text."""

    name: str
    revision: int
    document: str


async def read_contracts(pool: asyncpg.Pool) -> list[LoggedContract]:
    """Return the newest revision of every registered contract, by name."""
    return [LoggedContract(**row) for row in await pool.fetch(_CONTRACTS)]


async def registered_agents(pool: asyncpg.Pool) -> list[Registration]:
    """Return every agent that is registered and not revoked; people are none."""
    return [one for one in (await read_registry(pool)).values() if not one.is_revoked and one.kind is Kind.AGENT]


async def registered_people(pool: asyncpg.Pool) -> list[Registration]:
    """Return every person that is registered and not revoked."""
    return [one for one in (await read_registry(pool)).values() if not one.is_revoked and one.kind is Kind.PERSON]


async def read_changes(pool: asyncpg.Pool, shard: int) -> set[UUID]:
    """Return the ids of the changes by operators that this shard has logged."""
    return {row["change_id"] for row in await pool.fetch(_CHANGES, shard)}


async def read_later_changes(pool: asyncpg.Pool, home: asyncpg.Pool, shard: int) -> list[AnyChange]:
    """Return the changes that a shard of another database has logged and home has not, in their order."""
    rows = await pool.fetch(_CHANGES_OF, shard)
    known = {row["change_id"] for row in await home.fetch(_KNOWN, [row["change_id"] for row in rows], shard)}
    changes = [parse_logged_change(row["change"].encode()) for row in rows if row["change_id"] not in known]
    return [change for change in changes if not isinstance(change, HostChanged)]


async def read_hosts(pool: asyncpg.Pool) -> dict[str, bool]:
    """Return of every host that ever appeared whether it is here, as far as the log says."""
    return {row["host"]: row["is_present"] for row in await pool.fetch(_HOSTS)}


async def shards_with(pool: asyncpg.Pool, change: UUID) -> set[int]:
    """Return the shards whose log has a change."""
    return {row["shard"] for row in await pool.fetch(_SHARDS, change)}


async def count_recorded(pool: asyncpg.Pool, changes: Iterable[UUID]) -> int:
    """Return how often these changes are in the log, which has each of them once for every shard."""
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
        schemas=frozenset(orjson.loads(row["schemas"] or "[]")),
        kind=Kind(row["kind"] or Kind.AGENT),
        via=frozenset(row["via"]),
        speaks=frozenset(orjson.loads(row["speaks"] or "[]")) or SPEAKS_OLDEST,
        host=row["host"],
        allow_shared=row["allow_shared"],
    )
