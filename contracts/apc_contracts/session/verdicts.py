"""The effects of a verdict: a packet is refused, held, denied after it was held, or routed to its recipients."""

from datetime import datetime
from uuid import UUID

from apc_contracts.admission.rules.routing import is_question
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.session.lifecycle import ADMITTED, HANDED_OVER, Record, begin_verification, complete, move
from apc_contracts.session.movement import Advance, Denial, Effects, FinalVerdict, Hop, PacketInput, Route
from apc_contracts.session.session import OpenPacket, Progress
from apc_contracts.vocabulary import ORCHESTRATOR, Channel, PacketType
from apc_contracts.wire.parsing import ReceivedPacket

RELEASED = ["policy_pass", "route_selected"]
MEASURING_TYPES = frozenset({PacketType.TRANSFER, PacketType.EVAL})
"""Their final verdicts are what the effectiveness of protocols is computed from."""


def refuse(given: PacketInput, effects: Effects) -> None:
    """Record the hop of a refused packet that took an id."""
    refusal = given.verdict.refusal
    is_expired = refusal is not None and refusal.code == "EXPIRED"
    event, state = ("ttl_expired", "EXPIRED") if is_expired else ("policy_fail", "REJECTED_POLICY")
    events = ["emit", "schema_pass", event]
    effects.hops.append(_whole(given.received, 1, "DRAFT", state, events, given.now))
    _note_final(given.received, refusal, effects)


def hold(given: PacketInput, effects: Effects) -> None:
    """Record the hop of a held packet; it stays SCHEMA_VALIDATED."""
    hop = _whole(given.received, 1, "DRAFT", "SCHEMA_VALIDATED", ["emit", "schema_pass"], given.now)
    effects.hops.append(hop)


def deny(moment: Advance, received: ReceivedPacket, refusal: Refusal, record: Record | None = None) -> None:
    """Record the hop of a held packet that was finally refused; it keeps the reason, and the sender gets a NACK.

    The identity keeps the reason too: a repeat of the packet gets the same answer. `record` holds the facts of a ruling
    at a barrier or at RESUME, for a replay.
    """
    is_expired = refusal.code == "EXPIRED"
    event, state = ("ttl_expired", "EXPIRED") if is_expired else ("policy_fail", "REJECTED_POLICY")
    metadata: Record = {"refusal": refusal.document}
    if record is not None:
        metadata["facts"] = record
    packet_id, effects = received.packet.packet_id, moment.effects
    moment.session.identities[packet_id].refusal = refusal
    hop = Hop(packet_id, "", 1, "SCHEMA_VALIDATED", state, [event], [moment.now], ORCHESTRATOR, metadata)
    effects.hops.append(hop)
    effects.denials.append(Denial(received, refusal))
    _note_final(received, refusal, effects)


def route(
    moment: Advance,
    received: ReceivedPacket,
    recipients: tuple[str, ...],
    packet_round: int,
    *,
    was_held: bool = False,
    record: Record | None = None,
    note: Record | None = None,
) -> OpenPacket:
    """Open one machine per recipient; `apply_locally` finishes those inside the orchestrator itself.

    The hop keeps `record`, the facts of a ruling at a barrier or at RESUME, and `note`.
    """
    session, effects = moment.session, moment.effects
    start, events = ("SCHEMA_VALIDATED", RELEASED) if was_held else ("DRAFT", ADMITTED)
    metadata = note if record is None else {"facts": record} | (note or {})
    effects.hops.append(_whole(received, 1, start, "ROUTED", events, moment.now, metadata))
    _note_final(received, None, effects)
    opened = OpenPacket(received, packet_round, {})
    session.open[received.packet.packet_id] = opened
    remote = []
    for recipient in recipients:
        is_remote = not _is_in_gate(opened, recipient)
        opened.recipients[recipient] = Progress("ROUTED", 1, is_open=is_remote)
        if is_remote:
            remote.append(recipient)
            session.outstanding[recipient] = session.outstanding.get(recipient, 0) + 1
    if remote:
        effects.routes.append(Route(received, tuple(remote), 1))
    return opened


def apply_locally(moment: Advance, opened: OpenPacket) -> None:
    """Deliver and apply in the orchestrator's own hop: the recipient `orchestrator`, and INTRA_AGENT packets."""
    # A question ends here for the people who are asked: no receipt says so.
    remark = {"ended": "outcome", "ended_at": moment.now.isoformat()} if is_question(opened.packet) else None
    for recipient in opened.recipients:
        if _is_in_gate(opened, recipient):
            move(moment, opened, recipient, HANDED_OVER, remark=remark)
            begin_verification(moment, opened)
    complete(moment, opened)


def _is_in_gate(opened: OpenPacket, recipient: str) -> bool:
    return recipient == ORCHESTRATOR or is_question(opened.packet) or opened.packet.channel is Channel.INTRA_AGENT


def _note_final(received: ReceivedPacket, refusal: Refusal | None, effects: Effects) -> None:
    if received.packet.packet_type in MEASURING_TYPES:
        effects.final_verdicts.append(FinalVerdict(received.packet, None if refusal is None else refusal.code))


def _whole(
    received: ReceivedPacket,
    attempt: int,
    before: str,
    after: str,
    events: list[str],
    now: datetime,
    metadata: Record | None = None,
) -> Hop:
    packet = received.packet
    actor = ORCHESTRATOR if events[0] != "emit" else packet.sender.agent_id
    return Hop(packet.packet_id, "", attempt, before, after, events, [now] * len(events), actor, metadata)


# Packets without a session: heartbeats, and packets refused under the name of a session that does not exist.

ENDED = ["verification_pass", "non_promotable_complete"]


def identity_without_session(received: ReceivedPacket, refusal: Refusal | None, cause: UUID | None) -> Identity:
    """Return what is remembered of a heartbeat, or of a packet that was refused before its session began."""
    packet = received.packet
    named = tuple(recipient.agent_id for recipient in packet.recipients)
    return Identity(
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        packet_type=packet.packet_type,
        sender=packet.sender.agent_id,
        swarm_id=packet.sender.swarm_id,
        recipients=named,
        addressed=named,
        cause=cause,
        root=packet.trace.root_packet_id,
        verdict=VerdictKind.ACCEPTED if refusal is None else VerdictKind.REFUSED,
        refusal=refusal,
        run_phase=packet.run_phase,
        round=0,
        generation=packet.trace.generation,
        step=0,
    )


def hops_without_session(packet: Packet, refusal: Refusal | None, now: datetime) -> list[Hop]:
    """Return the whole life of a heartbeat, which the orchestrator applies itself, or of a packet without a session."""
    sender = packet.sender.agent_id
    if refusal is not None:
        event, state = ("ttl_expired", "EXPIRED") if refusal.code == "EXPIRED" else ("policy_fail", "REJECTED_POLICY")
        return [_hop(packet, "", "DRAFT", state, ["emit", "schema_pass", event], sender, now)]
    return [
        _hop(packet, "", "DRAFT", "ROUTED", ADMITTED, sender, now),
        _hop(packet, ORCHESTRATOR, "ROUTED", "APPLIED", HANDED_OVER, ORCHESTRATOR, now),
        _hop(packet, ORCHESTRATOR, "APPLIED", "ARCHIVED", ENDED, ORCHESTRATOR, now),
    ]


def _hop(packet: Packet, recipient: str, before: str, after: str, events: list[str], actor: str, now: datetime) -> Hop:
    return Hop(packet.packet_id, recipient, 1, before, after, events, [now] * len(events), actor)
