"""One packet with everything that the log has on it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from apc_log.body_encryption import is_sealed
from apc_log.queries import PacketRow, TransitionRow, list_agent_packets
from apc_log.queries.packet_pages import (
    LinkRow,
    links_above,
    links_below,
    packet_at,
    page_of_packets,
    sessions_of_packet,
    stored_body,
)
from apc_log.queries.trace import Position, list_packet_events, stale_packets
from apc_log.session_loading import contract_of_session
from apc_web.errors import not_found
from apc_web.models.packets import PacketDetail, PacketHop, PacketLink
from apc_web.reading.packets import summary
from apc_web.reading.plain_words import ruling_of
from apc_web.reading.session import PACKET_MACHINE, machine_of
from apc_web.route_services import Services

_HINT = "take an id that `GET /packets` lists"
_LARGEST_SHARD = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class PacketKey:
    """Which packet is meant: ids are unique within a session."""

    packet_id: UUID
    session_id: str


async def find_key(services: Services, name: str, session: str | None) -> PacketKey:
    """Return the packet that a name means; of several sessions the oldest. Raises ApiError when there is none."""
    shard, _, seq = name.partition("-")
    if seq.isdecimal() and name.count("-") == 1:
        if int(shard) > _LARGEST_SHARD or int(seq) > (1 << 63) - 1:
            raise not_found(f"packet at {name}", _HINT, "packet_id")
        found = await packet_at(services.pool, Position(int(shard), int(seq)))
        if found is None or session not in (None, found[1]):
            raise not_found(f"packet at {name}", _HINT, "packet_id")
        return PacketKey(*found)
    packet_id = UUID(name)
    sessions = await sessions_of_packet(services.pool, packet_id)
    named = [one for one in sessions if session in (None, one)]
    if not named:
        raise not_found(f"packet {packet_id}", _HINT, "packet_id")
    return PacketKey(packet_id, named[0])


async def packet_detail(services: Services, name: str, session: str | None) -> PacketDetail:
    """Return one packet. Raises ApiError when there is none."""
    pool = services.pool
    key = await find_key(services, name, session)
    row = (await list_agent_packets(pool, packet_id=key.packet_id, session_id=key.session_id, limit=1))[0]
    line = (
        await page_of_packets(
            pool, {"session_id": key.session_id}, newest=False, after=Position(row.shard, row.seq - 1), limit=1
        )
    )[0]
    hops = await list_packet_events(pool, key.packet_id, session_id=key.session_id)
    stale = (await stale_packets(pool, [row])).get((key.session_id, key.packet_id))
    sealed = is_sealed(row.body)
    contract = await contract_of_session(pool, row.contract_hash.hex(), services.contract)
    return PacketDetail(
        **dict(summary(line)),
        root_packet_id=row.root_packet_id,
        channel=row.channel,
        confidence=row.confidence,
        created_at=row.created_at,
        expires_at=row.expires_at,
        recorded_at=row.recorded_at,
        ruling=ruling_of(row, hops),
        facts=row.facts,
        document=None if sealed else _document(row),
        is_sealed=sealed,
        body_bytes=len(row.body),
        packet_hash=row.packet_hash.hex(),
        user_id=row.user_id,
        has_signature=row.signature is not None,
        hops=[_hop(hop) for hop in hops],
        lifecycle=machine_of(contract, PACKET_MACHINE),
        causes=[_link(link) for link in await links_above(pool, key.session_id, key.packet_id)],
        effects=[_link(link) for link in await links_below(pool, key.session_id, key.packet_id)],
        stale_because=None if stale is None else stale.because_packet_id,
        other_sessions=[one for one in await sessions_of_packet(pool, key.packet_id) if one != key.session_id],
    )


async def packet_body(services: Services, name: str, session: str | None) -> bytes:
    """Return the bytes of a packet as they are stored. Raises ApiError when there is none."""
    key = await find_key(services, name, session)
    body = await stored_body(services.pool, key.session_id, key.packet_id)
    if body is None:
        raise not_found(f"packet {key.packet_id}", _HINT, "packet_id")
    return body


def _document(row: PacketRow) -> dict[str, Any] | None:
    try:
        document = orjson.loads(row.body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _hop(row: TransitionRow) -> PacketHop:
    return PacketHop(
        seq=row.seq,
        recipient=row.recipient,
        attempt=row.attempt,
        event=row.event,
        from_state=row.from_state,
        to_state=row.to_state,
        at=row.occurred_at,
        actor=row.actor,
        metadata=row.metadata,
    )


def _link(row: LinkRow) -> PacketLink:
    return PacketLink(
        shard=row.shard,
        seq=row.seq,
        packet_id=row.packet_id,
        packet_type=row.packet_type,
        sender=row.sender_agent_id,
        verdict=row.verdict,
        edge=row.edge,
    )
