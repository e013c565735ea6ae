"""The rule for LOOP_DETECTED: the non-control packets of agents must say something new.

Control types are never refused for a loop: a STOP, a VETO or a correction must get through. They do not end a chain of
idle turns.
"""

from apc_contracts.admission.case import Case
from apc_contracts.judging.session_view import LoopState
from apc_contracts.judging.verdict import Refusal


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
