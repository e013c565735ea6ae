"""`apc session explain`: what the log knows around a session: agents, deliveries, held packets, refusals."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import asyncpg
import orjson

from apc_contracts.explanation.surroundings import (
    UNSETTLED_EFFECTS,
    AgentPresence,
    Doubts,
    FailedVerification,
    HeldNote,
    OpenDelivery,
    RefusalCount,
    RefusedUsage,
    Surroundings,
    UnsettledEffect,
)
from apc_contracts.identity.registry import Registration
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_log.heads import bounded, of_given, read_range, reads
from apc_log.queries.agents import OWN_REPORT, ListedAgent, list_registered
from apc_log.queries.dead import list_dead
from apc_log.queries.failures import failures_of, halting_failure
from apc_log.queries.lineage import list_stale_decisions
from apc_log.queries.packets import session_effects
from apc_log.queries.sessions import list_held_packets
from apc_log.registry import read_registry
from apc_log.session_loading import ERASED

_NOW = "SELECT clock_timestamp()"
# What the session itself says is newer than the last report of signs of life may be.
_SEEN = f"""
SELECT agent_id, max(at) AS last_seen FROM (
    SELECT sender_agent_id AS agent_id, max(recorded_at) AS at FROM apc_log.agent_packets
    WHERE session_id = $1 /*within agent_packets*/ GROUP BY sender_agent_id
    UNION ALL
    SELECT actor, max(recorded_at) FROM apc_log.packet_events AS hop
    WHERE session_id = $1 AND {OWN_REPORT} /*within hop*/ GROUP BY actor
) AS heard GROUP BY agent_id
"""
# A delivery is open from the packet's routing until a hop of its last attempt says that it ended.
_OPEN = """
WITH own AS (
    SELECT packet_id, recipient, max(attempt) FILTER (WHERE attempt > 0) AS attempt,
           max(attempt) FILTER (WHERE metadata ? 'ended') AS ended_attempt
    FROM apc_log.packet_events WHERE session_id = $1 AND recipient <> '' /*within packet_events*/
    GROUP BY packet_id, recipient
), shared AS (
    SELECT DISTINCT ON (packet_id) packet_id, to_state, recorded_at FROM apc_log.packet_events
    WHERE session_id = $1 AND recipient = '' AND to_state <> '' /*within packet_events*/
    ORDER BY packet_id, seq DESC
)
SELECT packet.packet_id, packet.packet_type, recipient.name AS recipient, coalesce(own.attempt, 1) AS attempt,
       last.error, last.retry_at, shared.recorded_at AS since,
       packet.sender_agent_id = $3 AND packet.packet_type = 'SIGNAL' AS is_notice
FROM apc_log.agent_packets AS packet
JOIN shared USING (packet_id)
CROSS JOIN LATERAL unnest(packet.recipients) AS recipient(name)
LEFT JOIN own ON own.packet_id = packet.packet_id AND own.recipient = recipient.name
LEFT JOIN LATERAL (
    SELECT hop.metadata ->> 'error' AS error, (hop.metadata -> 'retry' ->> 'due_at')::timestamptz AS retry_at
    FROM apc_log.packet_events AS hop
    WHERE hop.session_id = $1 AND hop.packet_id = packet.packet_id AND hop.recipient = recipient.name
      AND hop.attempt > 0 /*within hop*/
    ORDER BY hop.seq DESC LIMIT 1
) AS last ON true
WHERE packet.session_id = $1 AND packet.verdict <> 'refused' AND packet.channel <> 'INTRA_AGENT'
  AND shared.to_state = 'ROUTED' AND coalesce(own.ended_attempt, 0) < coalesce(own.attempt, 1) /*within packet*/
ORDER BY packet.seq, recipient.name LIMIT $2
"""
_MOST = 100

# What was refused in one session, counted by code, sender and type: the reason why nothing followed.

# On arrival, or by the hop that ended the wait of a held packet.
_COUNTS = """
WITH refused AS (
    SELECT packet.seq, packet.refusal, packet.sender_agent_id, packet.packet_type
    FROM apc_log.agent_packets AS packet WHERE packet.session_id = $1 AND packet.verdict = 'refused'
      /*within packet*/
    UNION ALL
    SELECT hop.seq, hop.metadata -> 'refusal', packet.sender_agent_id, packet.packet_type
    FROM apc_log.packet_events AS hop
    JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
    JOIN apc_log.agent_packets AS packet
      ON packet.shard = named.shard AND packet.seq = named.seq AND packet.verdict = 'held'
    WHERE hop.session_id = $1 AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED'
      AND hop.metadata ? 'refusal' /*within hop*/ /*within named*/ /*within packet*/
)
SELECT code, rule, sender_agent_id AS sender, packet_type, count(*) AS packets,
       (array_agg(refusal::text ORDER BY seq DESC))[1] AS refusal
FROM refused
CROSS JOIN LATERAL (SELECT refusal ->> 'code', CASE WHEN refusal ->> 'code' = 'RULE_FAILED' THEN refusal ->> 'rule' END)
  AS told(code, rule)
GROUP BY code, rule, sender_agent_id, packet_type ORDER BY max(seq) DESC LIMIT $2
"""
_MOST_CODES = 50


@reads(of_given)
async def count_refusals(pool: asyncpg.Pool, session_id: str) -> tuple[RefusalCount, ...]:
    """Return how many packets of a session were refused: by code, rule, sender and type; at most 50, latest first."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_COUNTS, bounds, session_id, _MOST_CODES))
    return tuple(RefusalCount(**{**row, "refusal": orjson.loads(row["refusal"])}) for row in rows)


# What is open to doubt about what came of a session.

# A delivery of an erased packet ends in the same way, and says nothing of its content.
_FAILED = """
SELECT DISTINCT ON (packet.seq) packet.packet_id, packet.packet_type, packet.sender_agent_id AS sender,
       hop.metadata ->> 'error' AS error
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
WHERE hop.session_id = $1 AND 'verification_fail' = ANY (hop.events)
  AND hop.metadata ->> 'error' IS DISTINCT FROM $3 /*within hop*/ /*within named*/ /*within packet*/
ORDER BY packet.seq LIMIT $2
"""
_REFUSED_USAGE = """
SELECT hop.recipient AS agent_id, packet.task_id, told.name AS resource,
       sum((hop.metadata -> 'usage' ->> told.name)::double precision) AS reported,
       sum(told.amount::double precision) AS refused
FROM apc_log.packet_events AS hop
CROSS JOIN LATERAL jsonb_each_text(hop.metadata -> 'usage_refused') AS told(name, amount)
JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
WHERE hop.session_id = $1 AND hop.metadata ? 'usage_refused' /*within hop*/ /*within named*/ /*within packet*/
GROUP BY 1, 2, 3 ORDER BY refused DESC, 1, 2, 3 LIMIT $2
"""


_HALTED = """
SELECT document ->> 'halt_reason' FROM apc_log.sessions WHERE session_id = $1 AND document ->> 'state' = 'HALTED'
"""


@reads(of_given)
async def read_refused_usage(pool: asyncpg.Pool, session_id: str) -> tuple[RefusedUsage, ...]:
    """Return what was reported as spent in a session and not charged, the largest parts first; at most 100."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_REFUSED_USAGE, bounds, session_id, _MOST))
    return tuple(RefusedUsage(**row) for row in rows)


@reads(of_given)
async def read_doubts(pool: asyncpg.Pool, session_id: str) -> Doubts:
    """Return why what came of a session is open to doubt; encrypted ERRORs are read with the master key."""
    doubts = await read_log_doubts(pool, session_id)
    dead = await list_dead(pool, session_id=session_id, limit=_MOST)
    reason = await pool.fetchval(_HALTED, session_id)
    return replace(
        doubts,
        dead=tuple(await failures_of(pool, dead, opens=True)),
        halted_by=await halting_failure(pool, session_id, reason, opens=True),
    )


@reads(of_given)
async def read_log_doubts(pool: asyncpg.Pool, session_id: str) -> Doubts:
    """Return what is open to doubt beside failures."""
    bounds = await read_range(pool, [session_id])
    failed = await pool.fetch(*bounded(_FAILED, bounds, session_id, _MOST, ERASED))
    return Doubts(
        await list_stale_decisions(pool, session_id),
        tuple(FailedVerification(**row) for row in failed),
        usage=await read_refused_usage(pool, session_id),
    )


# Who has published for whom: rules tell the members apart by it.

_USERS = """
SELECT DISTINCT sender_agent_id, user_id FROM apc_log.agent_packets WHERE session_id = $1 /*within agent_packets*/
LIMIT $2
"""


async def _shared_user(pool: asyncpg.Pool, session_id: str, registry: Mapping[str, Registration]) -> str | None:
    """Return the broker user who has published for all agents of a session that has several; else None."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_USERS, bounds, session_id, _MOST))
    agents = [row for row in rows if (known := registry.get(row["sender_agent_id"])) is not None and known.has_inbox]
    members = [row for row in agents if row["sender_agent_id"] != ORCHESTRATOR]
    users = {row["user_id"] for row in members}
    return users.pop() if len(members) > 1 and len(users) == 1 else None


@reads(of_given)
async def read_surroundings(pool: asyncpg.Pool, session_id: str, silence: timedelta) -> Surroundings:
    """Return what an explanation of this session needs; `silence` is the workers' setting heartbeat_silence."""
    bounds = await read_range(pool, [session_id])
    heard = await pool.fetch(*bounded(_SEEN, bounds, session_id))
    seen: dict[str, datetime] = {row["agent_id"]: row["last_seen"] for row in heard}
    registry = await read_registry(pool)
    listed = {one.agent_id: one for one in await list_registered(pool)}
    doubts = await read_doubts(pool, session_id)
    held = await list_held_packets(pool, session_id)
    bounds = await read_range(pool, [session_id])
    opened = [OpenDelivery(**row) for row in await pool.fetch(*bounded(_OPEN, bounds, session_id, _MOST, ORCHESTRATOR))]
    gone = {(one.packet_id, one.recipient) for one in doubts.dead}
    return Surroundings(
        now=await pool.fetchval(_NOW),
        agents={name: _presence(one, listed.get(name), seen.get(name)) for name, one in registry.items()},
        deliveries=tuple(one for one in opened if (one.packet_id, one.recipient) not in gone),
        held=tuple(HeldNote(one.packet_id, one.packet_type, one.sender_agent_id) for one in held),
        doubts=doubts,
        refusals=await count_refusals(pool, session_id),
        effects=tuple(
            UnsettledEffect(effect.packet_id, effect.agent_id, effect.key, effect.state)
            for effect in await session_effects(pool, session_id)
            if effect.state in UNSETTLED_EFFECTS
        ),
        shared_user=await _shared_user(pool, session_id, registry),
        silence=silence,
    )


def _presence(registration: Registration, listed: ListedAgent | None, here: datetime | None) -> AgentPresence:
    """Return what is known of an agent; `here`: when it was heard of last in the session."""
    reported = None if listed is None else listed.last_seen
    last_seen = max((at for at in (here, reported) if at is not None), default=None)
    is_host_present = None if listed is None else listed.is_host_present
    if is_host_present is False and last_seen != reported:
        is_host_present = None  # it spoke after its host had gone
    return AgentPresence(
        registration.is_revoked, last_seen, registration.rights, registration.swarm_id, is_host_present
    )
