"""What a session remembers for the loop guard, and the QUERY to senders in a loop.

Bounded: the newest contents of the open generation; the newest evidence_refs as checksums. A takeover finds the same:
evidence is in the document, contents and chains follow from the identities.
"""

from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.loop_state import LoopState, read_loop
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.session import emissions
from apc_contracts.session.content import content_of
from apc_contracts.session.document import checksum
from apc_contracts.session.movement import Advance
from apc_contracts.session.session import Session
from apc_contracts.session.session_effects import PacketInput
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PacketType, Signal


def note_content(session: Session, identity: Identity, contract: Contract) -> None:
    """Count a packet that was not refused on arrival. Control types and the orchestrator are not counted."""
    if identity.packet_type in CONTROL_TYPES or identity.sender == ORCHESTRATOR:
        return
    contents = session.contents
    content = content_of(identity.sender, identity.payload_hash, identity.generation, identity.addressed)
    contents[content] = contents.pop(content, 0) + 1
    if len(contents) > contract.loops.contents_kept:
        del contents[next(iter(contents))]


def recount_contents(session: Session, contract: Contract) -> None:
    """Count, for a loaded session, what was sent since its generation opened, in the order of the log."""
    for identity in session.identities.values():
        if identity.step >= session.document.generation_step and identity.verdict is not VerdictKind.REFUSED:
            note_content(session, identity, contract)


def note_evidence(session: Session, packet: Packet, contract: Contract) -> None:
    """Remember the evidence_refs of a packet that goes through: they are no longer new."""
    if packet.proof_bundle is None:
        return
    kept = session.document.evidence
    for reference in packet.proof_bundle.evidence_refs:
        found = checksum(reference)
        if found not in session.evidence:
            session.evidence.add(found)
            kept.append(found)
    while len(kept) > contract.loops.evidence_kept:
        session.evidence.discard(kept.pop(0))


def query_loop(moment: Advance, given: PacketInput) -> None:
    """Send a SIGNAL QUERY to the senders involved above the first threshold, once per group and generation."""
    packet, state = given.received.packet, read_loop(given.verdict.facts.get("loop"))
    # Control types are never refused for a loop, but who goes round with them alone is asked all the same. What only
    # answers is left out, as everywhere.
    if packet.packet_type in moment.contract.refusals.never_answered:
        return
    senders, reason = _involved(packet.sender.agent_id, state, moment.contract)
    queried, group = moment.session.document.round_state.queried, checksum(f"{reason} {' '.join(senders)}")
    if not senders or group in queried or len(queried) >= moment.contract.loops.queries_per_generation:
        return
    queried.append(group)
    for agent_id in senders:
        _query(moment, packet, agent_id, reason)


def _involved(sender: str, state: LoopState, contract: Contract) -> tuple[list[str], str]:
    limits = contract.loops
    if state.repeats >= limits.same_content.query_after:
        return [sender], "loop: the same payload again and again; what says it once more will be refused"
    if state.chain is not None and state.idle_turns > limits.idle_turns.query_after:
        reason = "loop: answers with nothing new; bring a new symbolic key or evidence_ref, or be refused"
        return sorted(state.chain.voices), reason
    return [], ""


def _query(moment: Advance, packet: Packet, agent_id: str, reason: str) -> None:
    emissions.emit(
        moment,
        PacketType.SIGNAL,
        SignalPayload(signal=Signal.QUERY, reason=reason),
        parent=packet.packet_id,
        recipient=agent_id,
    )
