"""What a session learns from its packets: blocked protocols, loops, news, stale packets, superseded decisions.

Source: docs/specification/contract.md sections 6 to 8.
"""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.contract_model import MAX_NAME_LENGTH
from apc_contracts.identity.ids import reply_id
from apc_contracts.judging.session_view import Identity, LoopState, read_loop
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.packet import Packet, defines, refers_to
from apc_contracts.payloads.by_type import ArbitrationPayload, DecisionPayload, SignalPayload, TransferPayload
from apc_contracts.protocol.effectiveness import PROTOCOL_DECAY_DECISION, DecayDecision, DecayKind
from apc_contracts.session import emissions
from apc_contracts.session.document import KEYS_KEPT, LONGEST_KEY, checksum
from apc_contracts.session.emissions import emission
from apc_contracts.session.movement import Advance, Hop, PacketInput
from apc_contracts.session.session import OpenPacket, Session, content_of
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PacketType, Signal


def decay_packet(session: Session, decision: DecayDecision, cause: Packet, now: datetime, contract: Contract) -> Packet:
    """Return the DECISION, in the session whose packet caused it.

    That packet is its parent; a TRANSFER's lineage becomes its own. decision_id names the subject, the same for a block
    and its recovery. `priority_distribution` holds the figures, `next_actions` the consequences, for people; an
    orchestrator reads the record that the packet is logged with.
    """
    payload = DecisionPayload(
        decision_id=_name(decision),
        recommendation=f"{PROTOCOL_DECAY_DECISION}: {decision.subject.scope} {decision.kind}",
        priority_distribution=_figures(decision, contract),
        next_actions=_actions(decision),
    )
    return emission(
        session,
        PacketType.DECISION,
        payload,
        cause.packet_id,
        now,
        contract,
        packet_id=reply_id(cause.packet_id, ORCHESTRATOR, f"{decision.kind}:{payload.decision_id}"),
        parent=cause.packet_id,
        lineage=cause.lineage,
    )


def _name(decision: DecayDecision) -> str:
    """Return the subject's name; for a protocol_id that is too long, its hash."""
    scope, protocol_id = decision.subject
    name = f"{PROTOCOL_DECAY_DECISION}:{scope}:{protocol_id}"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    return f"{PROTOCOL_DECAY_DECISION}:{scope}:sha256:{sha256(protocol_id.encode()).hexdigest()}"


def _figures(decision: DecayDecision, contract: Contract) -> dict[str, float]:
    figures = decision.figures(contract.effectiveness)
    return {
        "acceptance_rate": figures.acceptance_rate,
        "average_outcome": figures.average_outcome,
        "average_drift_risk": figures.average_drift_risk,
        "effectiveness": figures.effectiveness,
    }


def _actions(decision: DecayDecision) -> tuple[str, ...]:
    evidence = (
        f"evidence: {decision.accepted} of {decision.transfers} transfers accepted, {decision.scores.evals} EVALs"
    )
    if decision.kind is DecayKind.RECOVERED:
        return "accept its TRANSFERs again; what led to the block no longer counts", evidence
    until = f"until {decision.blocked_until.isoformat()}"
    return f"refuse its TRANSFERs and those of its descendants (PROTOCOL_DECAYED) {until}", evidence


# What a session remembers for the loop guard, and the QUERY to senders in a loop.
#
# Bounded: the newest contents of the open generation; the newest evidence_refs as checksums. A takeover finds the same:
# evidence is in the document, contents and chains follow from the identities.


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
        evidence = checksum(reference)
        if evidence not in session.evidence:
            session.evidence.add(evidence)
            kept.append(evidence)
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


# What is new to a session: symbolic keys, protocols and their holders.
#
# Bounded: each batch carries the document whole.


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


# Packets whose ground was retracted become stale (docs/research/governance.md, Retraction).
#
# Stale is an event, never a state: the machines of a stale packet go on.

STALE = "stale"
"""The event of the hop that marks a packet; it moves no machine."""


def note_grounds(session: Session, packet: Packet, contract: Contract) -> None:
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
        identity = moment.session.identities[packet_id]
        # A person who answered has no inbox to be told in; earlier contracts tell all, as their logs say.
        is_answer = moment.session.dossier is not None and identity.packet_type is PacketType.SIGNAL
        if identity.sender != ORCHESTRATOR and not is_answer:
            by_owner.setdefault(identity.sender, []).append(packet_id)
    most = moment.contract.retraction.named_packets
    for owner, owned in by_owner.items():
        payload = SignalPayload(signal=Signal.QUERY, reason=f"{len(owned)} of your packets rest on {ground}")
        stale_note = {"because": str(ground), "count": len(owned), "packets": [str(one) for one in owned[:most]]}
        emissions.emit(moment, PacketType.SIGNAL, payload, parent=parent, recipient=owner, metadata={STALE: stale_note})


# A later ARBITRATION or DECISION of no lower rank on the same subject supersedes the earlier one.
#
# Source: docs/specification/contract.md sections 7 and 8; docs/research/governance.md, Superseding, explains subject
# and rank. This module only finds which packets are superseded; `lifecycle.complete` moves the machines.

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
