"""What is new to a session: symbolic keys, protocols and their holders.

Bounded: each batch carries the document whole.
"""

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import TransferPayload
from apc_contracts.session.document import KEYS_KEPT, LONGEST_KEY
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ORCHESTRATOR


def note_symbols(session: Session, packet: Packet) -> None:
    """Remember the symbolic keys and the parent protocols of an admitted packet: they are no longer new."""
    kept = session.document.symbolic_keys
    for name in packet.symbolic_keys:
        key = name[:LONGEST_KEY]
        if key not in session.keys:
            session.keys.add(key)
            kept.append(key)
    while len(kept) > KEYS_KEPT:
        session.keys.discard(kept.pop(0))
    # The lineage of the orchestrator's ARBITRATION is that of a TRANSFER, which counts by itself when it goes through.
    if packet.lineage is not None and packet.sender.agent_id != ORCHESTRATOR:
        for parent in packet.lineage.parent_protocol_ids:
            _holders(session, parent)


def note_transfer(session: Session, packet: Packet) -> None:
    """Count an accepted TRANSFER, and remember which swarms hold its protocol now."""
    payload, current = packet.payload_as(TransferPayload), session.document.round_state
    counts = current.accepted_transfers
    counts[payload.to_swarm] = counts.get(payload.to_swarm, 0) + 1
    note_top_k(session, packet)
    holders = _holders(session, payload.protocol_id)
    holders.extend(swarm for swarm in (payload.from_swarm, payload.to_swarm) if swarm not in holders)


def note_top_k(session: Session, packet: Packet) -> None:
    """Remember the smallest top_k of a generation: it also binds transfers after its barrier."""
    to_swarm, top_k = (
        packet.payload_as(TransferPayload).to_swarm,
        packet.payload_as(TransferPayload).transfer_policy.top_k,
    )
    limits = session.document.round_state.smallest_top_k
    if top_k is not None:
        limits[to_swarm] = min(top_k, limits.get(to_swarm, top_k))


def _holders(session: Session, protocol_id: str) -> list[str]:
    protocols = session.document.protocols
    known = protocols.get(protocol_id)
    if known is not None:
        return known
    return protocols.setdefault(protocol_id, []) if len(protocols) < KEYS_KEPT else []
