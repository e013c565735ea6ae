"""Agents as the log knows them: registered, last heard, what is on its way to them, what their handlers did."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from apc_contracts.agent import INTRA_AGENT_MACHINE, Answer, LocalStep, walk_from_log
from apc_contracts.contract.contract import Contract
from apc_contracts.identity.registry_change import HOST_SUBJECT
from apc_log.heads import bounded, of_given, read_range, reads
from apc_log.registry import ACCEPTED

ALIVE_WITHIN = timedelta(seconds=90)
"""Three missed heartbeats (docs/specification/agents.md section 1: one after 30 s of silence)."""
OWN_REPORT = """
(hop.events && '{delivery_ack,consumer_apply,consumer_reject,retry_scheduled}'
 OR hop.metadata ? 'effect' OR hop.metadata ->> 'ended' IN ('outcome', 'reject', 'retry'))
"""
"""Whether the actor of a hop has reported it itself: dead letters and expiries are mostly told by others."""
# Whether an agent of a host lives, its host says; its own sign of life, if newer than the end of the host, counts too.
_LISTED = f"""
WITH registered AS MATERIALIZED (
    SELECT agent_id, host FROM apc_log.agents LEFT JOIN ({ACCEPTED}) AS accepted USING (agent_id)
), hosts AS MATERIALIZED (
    SELECT named.host, newest.is_present, newest.changed_at
    FROM (SELECT DISTINCT host FROM registered WHERE host IS NOT NULL) AS named CROSS JOIN LATERAL (
        SELECT event.change ->> 'presence' = 'appeared' AS is_present, event.recorded_at AS changed_at
        FROM apc_log.registry_events AS event JOIN apc_log.log_edges AS tree USING (shard)
        WHERE event.agent_id = '{HOST_SUBJECT}' || named.host AND event.shard = 0 AND event.seq <= tree.tree_size
          AND event.change ->> 'action' = 'host'
        ORDER BY event.seq DESC LIMIT 1
    ) AS newest
)
SELECT agent_id, role, swarm_id AS swarm, rights, handles, broker_user, is_revoked,
       ARRAY(SELECT json_object_keys(public_keys::json) ORDER BY 1) AS keys, host,
       CASE WHEN is_present OR sign.last_seen IS NULL OR sign.last_seen <= changed_at THEN is_present END
           AS is_host_present,
       changed_at AS host_changed_at, greatest(sign.last_seen, changed_at) AS last_seen
FROM apc_log.agents JOIN registered USING (agent_id) LEFT JOIN hosts USING (host)
LEFT JOIN apc_log.agent_presence AS sign USING (agent_id) ORDER BY agent_id
"""
_SIGNS = "SELECT agent_id, last_seen FROM apc_log.agent_presence"
# The planner expects a few packets in each running session, and would join thousands of one with each other.
BY_HASH = "SET LOCAL enable_nestloop = off"
# A delivery is open from the packet's routing until a hop of its last attempt says that it ended.
OPEN = """
WITH running AS (
    SELECT session_id FROM apc_log.sessions WHERE open_deliveries > 0
), own AS (
    SELECT session_id, packet_id, recipient, max(attempt) FILTER (WHERE attempt > 0) AS attempt,
           max(attempt) FILTER (WHERE metadata ? 'ended') AS ended_attempt
    FROM apc_log.packet_events WHERE session_id IN (SELECT session_id FROM running) AND recipient <> ''
    GROUP BY session_id, packet_id, recipient
), shared AS (
    SELECT DISTINCT ON (session_id, packet_id) session_id, packet_id, to_state
    FROM apc_log.packet_events
    WHERE session_id IN (SELECT session_id FROM running) AND recipient = '' AND to_state <> ''
    ORDER BY session_id, packet_id, seq DESC
)
SELECT recipient.name AS agent_id, count(*) AS deliveries
FROM apc_log.agent_packets AS packet
JOIN shared USING (session_id, packet_id)
CROSS JOIN LATERAL unnest(packet.recipients) AS recipient(name)
LEFT JOIN own ON own.session_id = packet.session_id AND own.packet_id = packet.packet_id
             AND own.recipient = recipient.name
WHERE packet.verdict <> 'refused' AND packet.channel <> 'INTRA_AGENT' AND shared.to_state = 'ROUTED'
  AND coalesce(own.ended_attempt, 0) < coalesce(own.attempt, 1)
GROUP BY recipient.name
"""


# As OPEN, of one agent: open deliveries that were routed before its newest change was logged.
_LEFT_BEHIND = """
WITH changed AS (
    SELECT shard, max(seq) AS seq FROM apc_log.registry_events WHERE agent_id = $1 GROUP BY shard
), running AS (
    SELECT session_id FROM apc_log.sessions WHERE open_deliveries > 0
), own AS (
    SELECT session_id, packet_id, max(attempt) FILTER (WHERE attempt > 0) AS attempt,
           max(attempt) FILTER (WHERE metadata ? 'ended') AS ended_attempt,
           (array_agg(seq ORDER BY attempt DESC NULLS LAST, seq))[1] AS retried_seq
    FROM apc_log.packet_events WHERE session_id IN (SELECT session_id FROM running) AND recipient = $1
    GROUP BY session_id, packet_id
), shared AS (
    SELECT DISTINCT ON (session_id, packet_id) session_id, packet_id, to_state, seq
    FROM apc_log.packet_events
    WHERE session_id IN (SELECT session_id FROM running) AND recipient = '' AND to_state <> ''
    ORDER BY session_id, packet_id, seq DESC
)
SELECT count(*) FROM apc_log.agent_packets AS packet
JOIN shared USING (session_id, packet_id) JOIN changed ON changed.shard = packet.shard
LEFT JOIN own USING (session_id, packet_id)
WHERE $1 = ANY (packet.recipients) AND packet.verdict <> 'refused' AND packet.channel <> 'INTRA_AGENT'
  AND shared.to_state = 'ROUTED' AND coalesce(own.ended_attempt, 0) < coalesce(own.attempt, 1)
  AND CASE WHEN own.attempt > 1 THEN own.retried_seq ELSE shared.seq END < changed.seq
"""


async def count_left_behind(pool: asyncpg.Pool, agent_id: str) -> int:
    """Return how many open deliveries to an agent were routed before its registration changed last."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(BY_HASH)
        return int(await connection.fetchval(_LEFT_BEHIND, agent_id))


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """An agent that was ever registered, and when it was heard of last."""

    agent_id: str
    role: str
    swarm: str
    rights: list[str]
    handles: list[str]
    broker_user: str
    is_revoked: bool
    keys: list[str]
    """The ids of its keys."""
    host: str | None
    """None = it has its own queues."""
    is_host_present: bool | None
    """Whether its host is here; None = it has none, nobody knows, or it spoke after its host had gone."""
    host_changed_at: datetime | None
    """When its host appeared, or was gone."""
    last_seen: datetime | None
    """Its newest packet or receipt, or the newest change of its host: up to 30 s old while it is heard of."""

    def is_alive(self, now: datetime) -> bool:
        """Return whether it lives: its host is here, or it was heard of lately."""
        if self.is_host_present is not None:
            return self.is_host_present
        return self.last_seen is not None and now - self.last_seen < ALIVE_WITHIN


async def list_registered(pool: asyncpg.Pool) -> list[ListedAgent]:
    """Return every agent that was ever registered, by name, with its last sign of life."""
    return [ListedAgent(**row) for row in await pool.fetch(_LISTED)]


async def read_signs(pool: asyncpg.Pool) -> dict[str, datetime]:
    """Return when each agent was heard of last, as the gates have reported it."""
    return {row["agent_id"]: row["last_seen"] for row in await pool.fetch(_SIGNS)}


async def count_open_deliveries(pool: asyncpg.Pool) -> dict[str, int]:
    """Return how many deliveries are on their way to each agent; agents without one are left out."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await connection.execute(BY_HASH)
        return {row["agent_id"]: row["deliveries"] for row in await connection.fetch(OPEN)}


# The newest causes of the agent's packets; an ACK or NACK names what it answers as its cause.
_CAUSES = """
SELECT session_id, cause_packet_id, max(judged_at) AS judged_at FROM apc_log.agent_packets
WHERE sender_agent_id = $1 AND cause_packet_id IS NOT NULL
  AND packet_type NOT IN ('ACK', 'NACK', 'ERROR', 'HEARTBEAT')
GROUP BY session_id, cause_packet_id
ORDER BY max(judged_at) DESC, cause_packet_id LIMIT $2
"""
# What became of each; $2 to $4 are the columns of the causes.
_INVOCATIONS = """
SELECT own.session_id, own.cause_packet_id, own.judged_at, cause.packet_type AS cause_type,
       (SELECT hop.metadata ->> 'ended' FROM apc_log.packet_events AS hop
        WHERE hop.session_id = own.session_id AND hop.packet_id = own.cause_packet_id AND hop.recipient = $1
          AND hop.metadata ? 'ended' /*within hop*/ ORDER BY hop.shard, hop.seq DESC LIMIT 1) AS ended,
       ARRAY(
           SELECT CASE WHEN emitted.verdict = 'refused' OR answer.packet_type = 'NACK' THEN 'refused'
                       WHEN answer.packet_type = 'ACK' OR NOT coalesce(
                           (content.packet #>> '{routing,requires_ack}')::boolean, false) THEN 'taken'
                       ELSE 'open' END
           FROM apc_log.agent_packets AS emitted
           JOIN apc_log.packets AS content USING (shard, seq)
           LEFT JOIN LATERAL (
               SELECT reply.packet_type FROM apc_log.agent_packets AS reply
               WHERE reply.cause_packet_id = emitted.packet_id AND reply.session_id = emitted.session_id
                 AND reply.packet_type IN ('ACK', 'NACK')
                 AND reply.shard = emitted.shard AND reply.seq > emitted.seq /*within reply*/
               ORDER BY reply.shard, reply.seq LIMIT 1
           ) AS answer ON true
           WHERE emitted.session_id = own.session_id AND emitted.cause_packet_id = own.cause_packet_id
             AND emitted.sender_agent_id = $1
             AND emitted.packet_type NOT IN ('ACK', 'NACK', 'ERROR', 'HEARTBEAT') /*within emitted*/
             /*within content*/
           ORDER BY emitted.shard, emitted.seq
       ) AS answers
FROM unnest($2::text[], $3::uuid[], $4::timestamptz[]) AS own(session_id, cause_packet_id, judged_at)
LEFT JOIN apc_log.agent_packets AS cause
    ON cause.session_id = own.session_id AND cause.packet_id = own.cause_packet_id AND cause.verdict <> 'refused'
    /*within cause*/
ORDER BY own.judged_at DESC, own.cause_packet_id
"""


@dataclass(frozen=True, slots=True)
class InvocationRow:
    """A handler of an agent at work on one packet."""

    session_id: str
    cause_packet_id: UUID
    cause_type: str | None
    """None: the cause is not in the log as accepted."""
    last_emission_at: datetime
    ended: str | None
    """How its delivery ended: outcome, retry, reject, …; None while it is open."""
    emissions: int
    state: str
    """Of the machine `intra_agent_coordination`."""
    steps: tuple[LocalStep, ...]


@reads(of_given)
async def list_invocations(
    pool: asyncpg.Pool, contract: Contract, agent_id: str, *, limit: int = 20
) -> list[InvocationRow]:
    """Return the handler invocations of an agent that emitted something, the newest first."""
    causes = await pool.fetch(_CAUSES, agent_id, limit)
    sessions, packets, times = (list(column) for column in zip(*causes, strict=True)) if causes else ([], [], [])
    bounds = await read_range(pool, sessions)
    rows = await pool.fetch(*bounded(_INVOCATIONS, bounds, agent_id, sessions, packets, times))
    return [_invocation(row, contract) for row in rows]


def _invocation(row: asyncpg.Record, contract: Contract) -> InvocationRow:
    machine = contract.machine(INTRA_AGENT_MACHINE)
    answers = [Answer(answer) for answer in row["answers"]]
    steps = walk_from_log(machine, answers, has_failed=row["ended"] not in (None, "outcome"))
    return InvocationRow(
        session_id=row["session_id"],
        cause_packet_id=row["cause_packet_id"],
        cause_type=row["cause_type"],
        last_emission_at=row["judged_at"],
        ended=row["ended"],
        emissions=len(answers),
        state=steps[-1].to_state if steps else machine.initial,
        steps=steps,
    )
