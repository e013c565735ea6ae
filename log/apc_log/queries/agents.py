"""Agents as the log knows them: registered, last heard, what is on its way to them, what their handlers did."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_contracts.agent import INTRA_AGENT_MACHINE, Answer, LocalStep, walk_from_log
from apc_contracts.contract.contract import Contract
from apc_contracts.vocabulary import PRESENCE_SESSION

_NEWEST = 5_000
"""Packets and hops of each shard in which signs of life are looked for, beside the HEARTBEATs.

An agent that emits more often than every 30 s sends a HEARTBEAT each minute all the same.
"""
OWN_REPORT = """
(hop.events && '{delivery_ack,consumer_apply,consumer_reject,retry_scheduled}'
 OR hop.metadata ? 'effect' OR hop.metadata ->> 'ended' IN ('outcome', 'reject', 'retry'))
"""
"""Whether the actor of a hop has reported it itself: dead letters and expiries are mostly told by others."""
RECENT_SIGNS = f"""
SELECT sign.agent_id, max(sign.at) AS at FROM apc_log.shards CROSS JOIN LATERAL (
    (SELECT sender_agent_id AS agent_id, recorded_at AS at FROM apc_log.agent_packets
     WHERE shard = shards.shard ORDER BY seq DESC LIMIT {_NEWEST})
    UNION ALL
    SELECT hop.actor, hop.recorded_at FROM (
        SELECT actor, recorded_at, events, metadata FROM apc_log.packet_events
        WHERE shard = shards.shard ORDER BY seq DESC LIMIT {_NEWEST}
    ) AS hop WHERE {OWN_REPORT}
) AS sign GROUP BY sign.agent_id
"""
_LISTED = f"""
WITH recent AS MATERIALIZED ({RECENT_SIGNS})
SELECT agent_id, role, swarm_id AS swarm, rights, handles, broker_user, is_revoked,
ARRAY(SELECT json_object_keys(public_keys::json) ORDER BY 1) AS keys, greatest(recent.at, (
    SELECT max(recorded_at) FROM apc_log.agent_packets
    WHERE session_id = $1 AND sender_agent_id = agents.agent_id
)) AS last_seen
FROM apc_log.agents LEFT JOIN recent USING (agent_id) ORDER BY agent_id
"""
# A delivery is open from the packet's routing until a hop of its last attempt says that it ended.
_OPEN = """
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


async def list_registered(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
    """Return every agent that was ever registered, with the ids of its keys and its last sign of life.

    That is a HEARTBEAT, or among the newest entries a packet of any session or a receipt.
    """
    return await pool.fetch(_LISTED, PRESENCE_SESSION)


async def count_open_deliveries(pool: asyncpg.Pool) -> dict[str, int]:
    """Return how many deliveries are on their way to each agent; agents without one are left out."""
    return {row["agent_id"]: row["deliveries"] for row in await pool.fetch(_OPEN)}


# The newest causes of the agent's packets; an ACK or NACK names what it answers as its cause.
_INVOCATIONS = """
WITH own AS MATERIALIZED (
    SELECT session_id, cause_packet_id, max(judged_at) AS judged_at FROM apc_log.agent_packets
    WHERE sender_agent_id = $1 AND cause_packet_id IS NOT NULL
      AND packet_type NOT IN ('ACK', 'NACK', 'ERROR', 'HEARTBEAT')
    GROUP BY session_id, cause_packet_id
    ORDER BY max(judged_at) DESC, cause_packet_id LIMIT $2
)
SELECT own.session_id, own.cause_packet_id, own.judged_at, cause.packet_type AS cause_type,
       (SELECT hop.metadata ->> 'ended' FROM apc_log.packet_events AS hop
        WHERE hop.session_id = own.session_id AND hop.packet_id = own.cause_packet_id AND hop.recipient = $1
          AND hop.metadata ? 'ended' ORDER BY hop.shard, hop.seq DESC LIMIT 1) AS ended,
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
                 AND reply.packet_type IN ('ACK', 'NACK') ORDER BY reply.shard, reply.seq LIMIT 1
           ) AS answer ON true
           WHERE emitted.session_id = own.session_id AND emitted.cause_packet_id = own.cause_packet_id
             AND emitted.sender_agent_id = $1
             AND emitted.packet_type NOT IN ('ACK', 'NACK', 'ERROR', 'HEARTBEAT')
           ORDER BY emitted.shard, emitted.seq
       ) AS answers
FROM own
LEFT JOIN apc_log.agent_packets AS cause
    ON cause.session_id = own.session_id AND cause.packet_id = own.cause_packet_id AND cause.verdict <> 'refused'
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


async def list_invocations(
    pool: asyncpg.Pool, contract: Contract, agent_id: str, *, limit: int = 20
) -> list[InvocationRow]:
    """Return the handler invocations of an agent that emitted something, the newest first."""
    rows = await pool.fetch(_INVOCATIONS, agent_id, limit)
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
