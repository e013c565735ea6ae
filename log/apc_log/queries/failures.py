"""Why deliveries failed: the exception of the handler, its attempts, and what was handled before."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.content import typed_content
from apc_contracts.explanation.failure import Failure, LastGood, halting_delivery
from apc_log.body_encryption import is_sealed
from apc_log.heads import Reach, bounded, of_given, read_range, reads
from apc_log.queries.dead import DeadDelivery, DeliveryId
from apc_log.queries.packets import list_agent_packets, opened_bodies

# The newest hop that ended the delivery as a dead letter; what the handler raised is in the ERROR that answers the
# packet, and in the hops of the attempts before.
_FAILED = """
SELECT packet.shard, packet.seq, given.session_id, given.packet_id, given.recipient,
       packet.packet_type, packet.sender_agent_id AS sender,
       packet.body_stored AS body, coalesce(ended.reason, '') AS reason,
       coalesce(ended.attempt, tried.attempt, 1) AS attempt, coalesce(ended.at, told.judged_at) AS at,
       told.packet_id AS error_id, told.body_stored AS error_body, tried.error AS tried,
       good.packet_id AS good_id, good.recipient AS good_recipient, good.packet_type AS good_type, good.at AS good_at
FROM unnest($1::text[], $2::uuid[], $3::text[]) WITH ORDINALITY AS given(session_id, packet_id, recipient, number)
JOIN apc_log.packet_ids AS ids ON ids.session_id = given.session_id AND ids.packet_id = given.packet_id /*within ids*/
JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq /*within packet*/
LEFT JOIN LATERAL (
    SELECT hop.seq, hop.attempt, hop.metadata ->> 'error' AS reason, hop.recorded_at AS at
    FROM apc_log.packet_events AS hop
    WHERE hop.session_id = given.session_id AND hop.packet_id = given.packet_id AND hop.recipient = given.recipient
      AND hop.to_state = 'DEAD_LETTERED' AND hop.shard = ids.shard AND hop.seq > ids.seq /*within hop*/
    ORDER BY hop.seq DESC LIMIT 1
) AS ended ON true
LEFT JOIN LATERAL (
    SELECT answer.seq, answer.packet_id, answer.body_stored, answer.judged_at FROM apc_log.agent_packets AS answer
    WHERE answer.parent_packet_id = given.packet_id AND answer.session_id = given.session_id
      AND answer.sender_agent_id = given.recipient AND answer.packet_type = 'ERROR'
      AND answer.shard = ids.shard AND answer.seq > ids.seq /*within answer*/ ORDER BY answer.seq DESC LIMIT 1
) AS told ON true
LEFT JOIN LATERAL (
    SELECT hop.attempt, hop.metadata ->> 'error' AS error FROM apc_log.packet_events AS hop
    WHERE hop.session_id = given.session_id AND hop.packet_id = given.packet_id AND hop.recipient = given.recipient
      AND hop.to_state <> 'DEAD_LETTERED' AND hop.metadata ? 'error'
      AND hop.shard = ids.shard AND hop.seq > ids.seq /*within hop*/ ORDER BY hop.seq DESC LIMIT 1
) AS tried ON true
LEFT JOIN LATERAL (
    SELECT hop.packet_id, hop.recipient, handled.packet_type, hop.recorded_at AS at FROM apc_log.packet_events AS hop
    JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
     AND named.shard = hop.shard AND named.seq < hop.seq /*within named*/
    JOIN apc_log.agent_packets AS handled ON handled.shard = named.shard AND handled.seq = named.seq
     /*within handled*/
    WHERE hop.session_id = given.session_id AND hop.shard = ids.shard AND 'consumer_apply' = ANY (hop.events)
      AND hop.seq < coalesce(ended.seq, told.seq) AND hop.recipient NOT IN ('', 'orchestrator')
      /*within hop*/
    ORDER BY hop.session_id DESC, hop.shard DESC, hop.seq DESC LIMIT 1
) AS good ON $4
ORDER BY given.number
"""


@reads(lambda given: Reach(sessions={one.session_id for one in given["dead"]}))
async def failures_of(
    pool: asyncpg.Pool, dead: Sequence[DeadDelivery], *, opens: bool = False, looks_back: bool = False
) -> list[Failure]:
    """Return why these dead letters failed, in their order.

    Args:
        pool: connections to the log.
        dead: the dead letters.
        opens: read encrypted ERRORs with the master key of the settings.
        looks_back: find what was handled last before each.
    """
    found = await _failures(pool, [one.id for one in dead], opens=opens, looks_back=looks_back)
    halted = {one.id for one in dead if one.is_in_halted_session}
    return [_failure(row, is_dead=True, is_halted=_id(row) in halted) for row in found]


@reads(of_given)
async def halting_failure(
    pool: asyncpg.Pool, session_id: str, halt_reason: str | None, *, opens: bool = False
) -> Failure | None:
    """Return the failure that halted a session; None where it halted for another reason, or did not."""
    named = halting_delivery(halt_reason)
    if named is None:
        return None
    rows = await _failures(pool, [DeliveryId(session_id, *named)], opens=opens, looks_back=True)
    return _failure(rows[0], is_dead=bool(rows[0]["reason"]), is_halted=True) if rows else None


def _id(row: Mapping[str, Any]) -> DeliveryId:
    return DeliveryId(row["session_id"], row["packet_id"], row["recipient"])


async def _failures(
    pool: asyncpg.Pool, deliveries: Sequence[DeliveryId], *, opens: bool, looks_back: bool
) -> list[dict[str, Any]]:
    if not deliveries:
        return []
    sessions, packets, recipients = zip(*deliveries, strict=True)
    bounds = await read_range(pool, sessions)
    found = await pool.fetch(*bounded(_FAILED, bounds, sessions, packets, recipients, looks_back))
    rows = [dict(row) for row in found]
    for row in rows if opens else ():
        await _open(pool, row)
    return rows


async def _open(pool: asyncpg.Pool, row: dict[str, Any]) -> None:
    """Decrypt the bodies of a row whose key is here."""
    for name, packet_id in (("body", row["packet_id"]), ("error_body", row["error_id"])):
        if row[name] is not None and is_sealed(row[name]):
            (found,) = await list_agent_packets(pool, packet_id=packet_id, session_id=row["session_id"], limit=1)
            row[name] = (await opened_bodies(pool, [found]))[0].body


def _failure(row: Mapping[str, Any], *, is_dead: bool, is_halted: bool) -> Failure:
    typed = typed_content(_payload(row["body"]))
    said = _payload(row["error_body"]).get("message")
    good: UUID | None = row["good_id"]
    return Failure(
        session_id=row["session_id"],
        packet_id=row["packet_id"],
        packet_type=row["packet_type"],
        sender=row["sender"],
        recipient=row["recipient"],
        reason=row["reason"],
        attempt=row["attempt"],
        at=row["at"],
        exception=said if isinstance(said, str) else row["tried"],
        shard=row["shard"],
        seq=row["seq"],
        schema=None if typed is None else typed[0],
        is_dead=is_dead,
        is_halted=is_halted,
        last_good=None if good is None else LastGood(good, row["good_type"], row["good_recipient"], row["good_at"]),
    )


def _payload(body: bytes | None) -> Mapping[str, Any]:
    if body is None or is_sealed(body):
        return {}
    try:
        payload = orjson.loads(body)["payload"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return payload if isinstance(payload, dict) else {}
