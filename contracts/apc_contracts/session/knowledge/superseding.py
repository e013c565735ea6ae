"""A later ARBITRATION or DECISION of no lower rank on the same subject supersedes the earlier one.

Source: docs/specification/contract.md sections 7 and 8; docs/explanation/governance.md, Superseding, explains subject
and rank. This module only finds which packets are superseded; `completion.complete` moves the machines.
"""

from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import ArbitrationPayload, DecisionPayload
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType

Subject = tuple[str, str]


def enter(session: Session, opened: OpenPacket, rights: frozenset[str], contract: Contract) -> list[OpenPacket]:
    """Give a routed packet its rank, and return the earlier ones that it supersedes, oldest first."""
    packet = opened.packet
    if packet.packet_type not in contract.superseding.types:
        return []
    rest(session, opened, rights, contract)
    earlier: dict[UUID, OpenPacket] = {}
    for subject in _subjects(session, packet, contract):
        for packet_id in session.resting[subject]:
            other = session.open.get(packet_id)
            if other is not None and other is not opened and _yields(session, other, opened):
                earlier[packet_id] = other
    for packet_id in earlier:
        session.document.superseded[packet_id] = packet.packet_id
    return list(earlier.values())


def rest(session: Session, opened: OpenPacket, rights: frozenset[str], contract: Contract) -> None:
    """Remember a packet that may be superseded later: after its routing, or when its session is loaded."""
    packet, rules = opened.packet, contract.superseding
    if packet.packet_type not in rules.types:
        return
    if packet.sender.agent_id == ORCHESTRATOR:
        authority = "orchestrator"
    else:
        authority = "deciding" if contract.rights.moves_session in rights else "member"
    opened.standing = rules.authority.index(authority), _commitment(packet, contract)
    for subject in _subjects(session, packet, contract):
        known = session.resting.setdefault(subject, [])
        # Those that have finished need not be checked again.
        known[:] = [packet_id for packet_id in known if packet_id in session.open]
        known.append(packet.packet_id)


def _yields(session: Session, earlier: OpenPacket, later: OpenPacket) -> bool:
    """Return whether `earlier` is superseded by `later`: it counts as higher where authority and commitment are equal.

    A late packet of an older round never supersedes.
    """
    is_free = earlier.packet.packet_id not in session.document.superseded
    return is_free and later.round >= earlier.round and later.standing >= earlier.standing


def _subjects(session: Session, packet: Packet, contract: Contract) -> list[Subject]:
    """Return the packet's subjects: two packets are about the same when they share one."""
    if packet.packet_type is PacketType.ARBITRATION:
        return [("arbitration", packet.payload_as(ArbitrationPayload).arbitration_id)]
    subjects = [("decision", packet.payload_as(DecisionPayload).decision_id)]
    parent = packet.trace.parent_packet_id
    identity = session.identity(parent) if parent is not None else None
    if identity is not None and identity.packet_type in contract.superseding.same_parent:
        subjects.append(("parent", str(parent)))
    return subjects


def _commitment(packet: Packet, contract: Contract) -> int:
    """Return the commitment rank: 0 for an ARBITRATION, and for a DECISION that commits to nothing."""
    level = packet.payload_as(DecisionPayload).commitment_level if packet.packet_type is PacketType.DECISION else None
    return 0 if level is None else 1 + contract.superseding.commitment.index(level)
