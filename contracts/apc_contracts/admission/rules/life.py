"""Rules for EXPIRED, CLOCK_SKEW, UNKNOWN_SESSION, SESSION_TERMINAL and SESSION_PAUSED: is it the time, and the session?

`now` is the gate's clock; offline, the packet's created_at.
"""

from datetime import timedelta

from apc_contracts.admission.case import Case, Ruling
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.payloads.by_type import ArbitrationPayload, SignalFields, TaskIrPayload
from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec
from apc_contracts.vocabulary import PRESENCE_SESSION, PacketType, Signal


def spec_has_room(case: Case) -> Refusal | None:
    """Refuse a SessionSpec with more swarms than a SYNC can hold scores for."""
    spec, bound = case.packet.payload_as(SignalFields).session, case.contract.limits.swarms
    if isinstance(spec, TaskSessionSpec) and len(spec.members) > case.contract.limits.list_items:
        return _too_long("payload.session.members", len(spec.members), case.contract.limits.list_items)
    if not isinstance(spec, SessionSpec) or len(spec.swarms) <= bound:
        return None
    message = f"{len(spec.swarms)} swarms, the limit is {bound}: open several sessions, or make fewer, larger swarms"
    return Refusal("TOO_LARGE", "spec_has_room", "payload.session.swarms", message)


def lists_have_room(case: Case) -> Refusal | None:
    """Refuse a packet in which a list of names is longer than the orchestrator can remember."""
    packet, limits = case.packet, case.contract.limits
    lineage, bundle = packet.lineage, packet.proof_bundle
    if lineage is not None and len(lineage.parent_protocol_ids) > limits.parents:
        return _too_long("lineage.parent_protocol_ids", len(lineage.parent_protocol_ids), limits.parents)
    lists: list[tuple[str, int]] = [("recipients", len(packet.recipients))]
    if lineage is not None:
        lists.append(("lineage.ancestor_swarms", len(lineage.ancestor_swarms)))
    if bundle is not None:
        lists.append(("proof_bundle.evidence_refs", len(bundle.evidence_refs)))
    if packet.packet_type is PacketType.TASK_IR:
        lists.append(("payload.objects", len(packet.payload_as(TaskIrPayload).objects)))
    elif packet.packet_type is PacketType.ARBITRATION:
        payload = packet.payload_as(ArbitrationPayload)
        named = sum(len(candidate.packet_ref_ids) for candidate in payload.candidates)
        lists.append(("payload.candidates", max(named, len(payload.candidates))))
    for path, count in lists:
        if count > limits.list_items:
            return _too_long(path, count, limits.list_items)
    return None


def _too_long(path: str, count: int, limit: int) -> Refusal:
    return Refusal("TOO_LARGE", "lists_have_room", path, f"{count} names, the limit is {limit}: name fewer")


def session_is_here(case: Case) -> Refusal | None:
    """Refuse a packet whose session does not exist or belongs to another shard.

    START opens a session; HEARTBEAT has the reserved session `_presence`.
    """
    session_id = case.packet.trace.session_id
    if not case.facts.hashes_to_shard:
        message = f"session {session_id} belongs to another shard: publish with its own shard as routing key"
        return Refusal("UNKNOWN_SESSION", "session_is_here", "trace.session_id", message)
    if case.session is not None:
        return None
    packet_type = case.packet.packet_type
    if session_id.startswith("_"):
        if packet_type is PacketType.HEARTBEAT and session_id == PRESENCE_SESSION:
            return None
        message = f"session ids that begin with _ are reserved: {packet_type} needs its own session"
    elif packet_type is PacketType.SIGNAL and case.packet.payload_as(SignalFields).signal is Signal.START:
        if case.packet.payload_as(SignalFields).session is not None:
            return None
        message = "START opens a session with a SessionSpec: give payload.session"
        return Refusal("UNKNOWN_SESSION", "session_is_here", "payload.session", message)
    else:
        message = f"there is no session {session_id}: open it with SIGNAL START"
    return Refusal("UNKNOWN_SESSION", "session_is_here", "trace.session_id", message)


def session_goes_on(case: Case) -> Refusal | None:
    """Refuse a packet of a session that has ended, unless it is a correction or an answer."""
    session = case.session
    if session is None or not session.is_terminal:
        return None
    if case.packet.packet_type in case.contract.recorded_after_end:
        return None
    message = f"session {session.session_id} has ended in {session.state}: open a new one"
    return Refusal("SESSION_TERMINAL", "session_goes_on", "trace.session_id", message)


def session_is_running(case: Case) -> Ruling:
    """Hold a packet that is not control while the session is paused; refuse it beyond the limit."""
    session = case.session
    if session is None or not session.is_paused:
        return None
    limit = case.contract.limits.held_packets
    if session.held_count < limit:
        return VerdictKind.HELD
    message = f"session {session.session_id} is paused and holds {limit} packets: send again after RESUME"
    return Refusal("SESSION_PAUSED", "session_is_running", "trace.session_id", message)


def not_expired(case: Case) -> Refusal | None:
    """Refuse a packet whose time has passed."""
    packet = case.packet
    if case.facts.now < packet.expires:
        return None
    path = "routing.ttl_ms" if packet.expires_at is None else "expires_at"
    message = f"expired at {packet.expires.isoformat()}: send a new packet that lives longer"
    return Refusal("EXPIRED", "not_expired", path, message)


def not_from_the_future(case: Case) -> Refusal | None:
    """Refuse a packet whose created_at is too far ahead of the gate's clock."""
    created_at, now = case.packet.created_at, case.facts.now
    if created_at <= now:
        return None
    tolerance = timedelta(milliseconds=case.contract.limits.clock_skew_ms)
    if created_at - now <= tolerance:
        return None
    message = f"created {(created_at - now).total_seconds():.0f} s ahead of the gate: set the sender's clock"
    return Refusal("CLOCK_SKEW", "not_from_the_future", "created_at", message)
