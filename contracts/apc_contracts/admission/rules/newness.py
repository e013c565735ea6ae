"""Rules for REPEAT, RERUN, DUPLICATE_CONFLICT and LOOP_DETECTED: what is new (docs/specification/contract.md 9)."""

from apc_contracts.admission.case import Case, Ruling
from apc_contracts.identity.ids import reply_id
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.session_view import Identity, LoopState
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.packet import Packet

_DERIVED_VERSION = 5


def identity_is_free(case: Case) -> Ruling:
    """Return whether a known id is a repeat, a rerun of its handler, or a conflict; the first packet stands."""
    known = case.session.identity(case.packet.packet_id) if case.session is not None else None
    if known is None:
        return None
    if is_same(known, case.packet, case.facts):
        return VerdictKind.REPEAT
    if _is_rerun(known, case):
        return VerdictKind.RERUN
    message = "another packet has this packet_id in the session and stands: send a new packet with a new id"
    return Refusal("DUPLICATE_CONFLICT", "identity_is_free", "packet_id", message)


def derived_id_is_own(case: Case) -> Refusal | None:
    """Refuse a v5 id that does not follow from cause, sender and ordinal: nobody can take another's id."""
    packet_id, facts = case.packet.packet_id, case.facts
    if packet_id.version != _DERIVED_VERSION:
        return None
    if facts.cause is None or facts.ordinal is None:
        message = "a v5 packet_id needs the headers apc-cause and apc-ordinal that it was made from"
    elif reply_id(facts.cause, case.sender_id, facts.ordinal) != packet_id:
        message = 'a v5 packet_id must be UUIDv5(apc-cause, agent_id + "/" + apc-ordinal)'
    elif not facts.is_cause_delivered:
        message = f"the cause {facts.cause} was not delivered to {case.sender_id}: name the packet that it got"
    else:
        return None
    return Refusal("DUPLICATE_CONFLICT", "derived_id_is_own", "packet_id", message)


def is_same(known: Identity, packet: Packet, facts: Facts) -> bool:
    """Return whether a packet under a taken id is the one that took it: by its bytes, or by what it says to whom."""
    return known.packet_hash == facts.packet_hash or (
        known.payload_hash == facts.payload_hash
        and known.packet_type is packet.packet_type
        and known.sender == packet.sender.agent_id
        and known.cause == facts.proven_cause
        and known.addressed == tuple(recipient.agent_id for recipient in packet.recipients)
    )


def _is_rerun(known: Identity, case: Case) -> bool:
    """Return whether the packet comes from a handler that ran again and answered differently.

    Without a cause there is no handler: that is a conflict.
    """
    return (
        known.cause is not None
        and known.cause == case.facts.proven_cause
        and known.sender == case.sender_id
        and known.payload_hash != case.facts.payload_hash
    )


# The non-control packets of agents must say something new. Control types are never refused for a loop: a STOP, a VETO
# or a correction must get through. They do not end a chain of idle turns.


def ends_no_loop(case: Case) -> Refusal | None:
    """Refuse the same content sent too often in one generation, and a chain of too many idle turns."""
    if case.session is None:
        return None
    packet, facts = case.packet, case.facts
    case.loop = state = case.session.loop_of(packet, facts.payload_hash, facts.proven_cause)
    if packet.packet_type in case.contract.control_types:
        return None
    limits = case.contract.loops
    if state.repeats >= limits.same_content.refuse_after:
        message = (
            f"{case.sender_id} sent this payload to the same recipients {state.repeats} times in this generation: "
            "send something else, or wait for the next generation"
        )
        return Refusal("LOOP_DETECTED", "same_content", "payload", message)
    if state.idle_turns > limits.idle_turns.refuse_after:
        message = (
            f"{_names(state)} answered each other {state.idle_turns} times with nothing new: "
            "bring a symbolic key or an evidence_ref that the session has not seen"
        )
        return Refusal("LOOP_DETECTED", "idle_turns", "trace.parent_packet_id", message)
    return None


def _names(state: LoopState) -> str:
    return ", ".join(sorted(state.chain.voices)) if state.chain is not None else ""
