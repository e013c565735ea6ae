"""What a packet rests on, transitively: packets that it cites or answers, artifacts, approvals, and effects."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from apc_contracts.vocabulary import PacketType
from apc_log.queries.lineage import ImpactRow, get_packet_grounds
from apc_log.queries.outcomes import SaidRow, is_of_people, list_reviews, said_rows
from apc_log.queries.packets import LoggedEffect, PacketRow, Position, names_cited, session_effects
from apc_web.contents import Said, Spoken, said_at
from apc_web.models import ApiModel, Sender, Shown
from apc_web.outcomes import SessionApproval, approval_of, lines_of
from apc_web.route_services import Reading


class Ground(Spoken):
    """A packet that another one rests on."""

    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[Sender]
    judged_at: Shown[datetime]
    is_cited: Shown[bool]
    """The packet names it in its evidence; else it answers it, or rests on it through others."""
    is_direct: Shown[bool]
    """The packet cites or answers it itself."""
    is_stale: Shown[bool]
    is_retracted: Shown[bool]


class GroundApproval(SessionApproval):
    """An approval that a packet rests on, or a reviewer's word on it, and its place in the log."""

    packet_type: Shown[str]
    shard: Shown[int]
    seq: Shown[int]


class GroundEffect(ApiModel):
    """An act outside the bus that was made for the packet, or for one that it rests on."""

    packet_id: Shown[UUID]
    agent_id: Shown[str]
    key: str
    """As the handler wrote it: it may name what a body names."""
    state: Shown[str]
    """claimed, made, unknown, settled or absent."""
    shard: Shown[int]
    seq: Shown[int]
    """Position of its last entry."""
    at: Shown[datetime]
    reference: str | None
    """What the other side calls it."""


class EvidenceAnswer(ApiModel):
    """What a packet rests on, in the order of the log; at most 200 packets."""

    packets: Shown[list[Ground]]
    artifacts: Shown[list[Ground]]
    approvals: Shown[list[GroundApproval]]
    effects: Shown[list[GroundEffect]]
    total: Shown[int]
    """Packets that it rests on."""


_MOST = 200


async def evidence_of(reading: Reading, packet_id: UUID, session_id: str) -> EvidenceAnswer | None:
    """Return what a packet rests on; None when the log does not hold it."""
    found = await get_packet_grounds(
        reading.pool,
        packet_id,
        session_id=session_id,
        rests_on_nothing=reading.contract.retraction.rests_on_nothing,
    )
    if found is None:
        return None
    rows = found.grounds[-_MOST:]
    signals = [row for row in rows if row.packet_type == PacketType.SIGNAL]
    approvals = await _approvals(reading, found.packet, signals)
    told = [row for row in rows if row.packet_type not in (PacketType.SIGNAL, PacketType.ARTIFACT)]
    artifacts = [row for row in rows if row.packet_type == PacketType.ARTIFACT]
    said = await said_at(reading.pool, reading.schemas, [*told, *artifacts])
    cited = await _cited(reading, found.packet)
    return EvidenceAnswer(
        packets=[_ground(row, said, found.packet, cited) for row in told],
        artifacts=[_ground(row, said, found.packet, cited) for row in artifacts],
        approvals=approvals,
        effects=await _effects(reading, session_id, {packet_id, *(row.packet_id for row in rows)}),
        total=len(found.grounds),
    )


def _ground(row: ImpactRow, said: dict[Position, Said], packet: PacketRow, cited: frozenset[str]) -> Ground:
    is_cited = str(row.packet_id) in cited
    is_direct = is_cited or row.packet_id in (packet.parent_packet_id, packet.cause_packet_id)
    return Ground.of(said.get(row.position, Said()), row, is_cited=is_cited, is_direct=is_direct)


async def _cited(reading: Reading, packet: PacketRow) -> frozenset[str]:
    """Return the ids of the packets that a packet names as its evidence."""
    names = await names_cited(reading.pool, packet.position)
    return frozenset(name.removeprefix("packet:") for name in names if name.startswith("packet:"))


async def _approvals(reading: Reading, packet: PacketRow, signals: Sequence[ImpactRow]) -> list[GroundApproval]:
    """Return the answers of people among the signals, and what reviewers said to a DECISION."""
    said = await said_rows(reading.pool, [one.position for one in signals])
    rows = [row for row in said if is_of_people(row.payload)]
    if packet.packet_type == PacketType.DECISION:
        rows += await list_reviews(reading.pool, packet.session_id, packet.packet_id)
    asked = await lines_of(reading, packet.session_id, {row.parent_packet_id for row in rows})
    return [_approval(row, asked.get(row.parent_packet_id, "")) for row in rows]


def _approval(row: SaidRow, asked: str) -> GroundApproval:
    return GroundApproval.of(approval_of(row, asked), row)


async def _effects(reading: Reading, session_id: str, packets: set[UUID]) -> list[GroundEffect]:
    effects = await session_effects(reading.pool, session_id)
    return [_effect(one) for one in effects if one.packet_id in packets][:_MOST]


def _effect(effect: LoggedEffect) -> GroundEffect:
    last = effect.entries[-1]
    named = [one.reference for one in effect.entries if one.reference]
    return GroundEffect.of(effect, last, at=last.at, reference=named[-1] if named else None)
