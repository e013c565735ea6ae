"""Packets whose ground was retracted become stale (docs/explanation/governance.md, Retraction).

Stale is an event, never a state: the machines of a stale packet go on.
"""

from collections.abc import Sequence
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.envelope.references import defines, refers_to
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.session import emissions
from apc_contracts.session.movement import Advance
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.session.session_effects import Hop
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal

STALE = "stale"
"""The event of the hop that marks a packet; it moves no machine."""


def note(session: Session, packet: Packet, contract: Contract) -> None:
    """Remember what an admitted packet rests on."""
    if packet.packet_type not in contract.retraction.rests_on_nothing:
        session.grounds.note(
            packet.packet_id, packet.packet_type, packet.trace.parent_packet_id, refers_to(packet), defines(packet)
        )


def spread(moment: Advance, target: UUID, replacement: UUID | None) -> None:
    """Mark everything that rests on a retracted packet, except its replacement, and tell the owners."""
    if replacement is not None:
        moment.session.grounds.replaced[target] = replacement
    stale = [packet_id for packet_id in moment.session.grounds.closure(target) if _is_sound(moment.session, packet_id)]
    for packet_id in stale:
        _record_staleness(moment, packet_id, {"because": str(target), "retraction": str(moment.cause)})
    _tell_owners(moment, target, stale, moment.cause)


def judge_arrival(moment: Advance, opened: OpenPacket) -> None:
    """Mark an admitted packet that rests on a retracted or stale one as stale from the start."""
    session, packet = moment.session, opened.packet
    if packet.packet_type in moment.contract.retraction.rests_on_nothing or not _is_sound(session, packet.packet_id):
        return
    grounds = session.grounds.grounds_of(packet.packet_id, packet.trace.parent_packet_id, refers_to(packet))
    for ground in grounds:
        if session.identity(ground) is not None and not _is_sound(session, ground):
            _record_staleness(moment, packet.packet_id, {"because": str(ground)})
            _tell_owners(moment, ground, [packet.packet_id], None)
            return


def _is_sound(session: Session, packet_id: UUID) -> bool:
    identity = session.identities[packet_id]
    return not identity.retracted and not identity.stale


def _record_staleness(moment: Advance, packet_id: UUID, why: dict[str, str]) -> None:
    moment.session.identities[packet_id].stale = True
    hop = Hop(packet_id, "", 0, "", "", [STALE], [moment.now], ORCHESTRATOR, {STALE: why})
    moment.effects.hops.append(hop)


def _tell_owners(moment: Advance, ground: UUID, stale: Sequence[UUID], parent: UUID | None) -> None:
    """Send one SIGNAL QUERY to each sender, with its packets in metadata.stale, as far as they fit."""
    by_owner: dict[str, list[UUID]] = {}
    for packet_id in stale:
        owner = moment.session.identities[packet_id].sender
        if owner != ORCHESTRATOR:
            by_owner.setdefault(owner, []).append(packet_id)
    most = moment.contract.retraction.named_packets
    for owner, owned in by_owner.items():
        payload = SignalPayload(signal=Signal.QUERY, reason=f"{len(owned)} of your packets rest on {ground}")
        told = {"because": str(ground), "count": len(owned), "packets": [str(one) for one in owned[:most]]}
        emissions.emit(moment, PacketType.SIGNAL, payload, parent=parent, recipient=owner, metadata={STALE: told})
