"""The transfer rules: when knowledge may move (docs/specification/contract.md section 5).

Window and phase guard must both pass.
"""

from collections.abc import Callable

from apc_contracts.admission.case import Case, Ruling
from apc_contracts.contract.file import ThrottleCode
from apc_contracts.judging.session_view import SessionView
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.payloads.by_type import TransferPayload
from apc_contracts.protocol.transfers import is_cross_use_case, transfer_scores

_POLICY = "payload.transfer_policy"


def waits_for_barrier(case: Case) -> Ruling:
    """Hold a TRANSFER in phases that arbitrate transfers when the generation closes.

    A TRANSFER whose parent is from such a phase has no barrier to wait for once the session has left it.
    """
    return VerdictKind.HELD if case.session is not None and _has_barrier(case, case.session) else None


def window_is_open(case: Case) -> Refusal | None:
    """Refuse a TRANSFER outside the window of its generation, or before its own min_generation."""
    window = case.contract.window(case.generation)
    if not window.is_open:
        message = f"no transfers in generation {case.generation} ({window.name}): wait for a later window"
        return Refusal("TRANSFER_WINDOW_CLOSED", "window_is_open", "trace.generation", message)
    minimum = case.packet.payload_as(TransferPayload).transfer_policy.min_generation
    if minimum is None or case.generation >= minimum:
        return None
    message = f"the TRANSFER asks for generation {minimum}, this is {case.generation}: send it then"
    return Refusal("TRANSFER_WINDOW_CLOSED", "window_is_open", f"{_POLICY}.min_generation", message)


def phase_guard(code: ThrottleCode) -> Callable[[Case], Refusal | None]:
    """Return the rule for the guard of the packet's phase, for phases that refuse with this code."""

    def phase_guard_holds(case: Case) -> Refusal | None:
        guarded = case.contract.policies[case.packet.run_phase].transfer
        if guarded is None or guarded.code != code or guarded.guard.holds(guard_facts(case)):
            return None
        message = f"in {case.packet.run_phase} a TRANSFER needs {guarded.guard.text}"
        return Refusal(code, "phase_guard", guarded.path, message)

    return phase_guard_holds


def use_case_is_kept(case: Case) -> Refusal | None:
    """Refuse a cross-use-case TRANSFER before the window that allows it."""
    window = case.contract.window(case.generation)
    if window.allows_cross_use_case or not is_cross_use_case(case.packet):
        return None
    message = f"no cross-use-case transfers in generation {case.generation} ({window.name})"
    lineage = case.packet.lineage
    path = "lineage.cross_use_case" if lineage is not None and lineage.cross_use_case else f"{_POLICY}.mode"
    return Refusal("THROTTLE_CROSS_USE_CASE", "use_case_is_kept", path, message)


def score_is_ahead(case: Case) -> Refusal | None:
    """Refuse a TRANSFER whose sender's score is not far enough ahead.

    The stricter of the window's multiplier and the packet's own applies, to verified scores where available.
    """
    window = case.contract.window(case.generation)
    own = case.packet.payload_as(TransferPayload).transfer_policy.threshold_multiplier
    multiplier = max(window.score_multiplier or 0.0, own or 0.0)
    if not multiplier:
        return None
    sender, receiver = transfer_scores(case.packet, case.session)
    if sender > receiver * multiplier:
        return None
    message = f"sender score {sender:.6g} is not above {multiplier:g} x receiver score {receiver:.6g}"
    return Refusal("THROTTLE_SCORE", "score_is_ahead", "payload.sender_score", message)


def top_k_is_given(case: Case) -> Refusal | None:
    """Refuse a TRANSFER without top_k, or with one above the window's cap."""
    limit = case.contract.window(case.generation).top_k_limit
    top_k = case.packet.payload_as(TransferPayload).transfer_policy.top_k
    if limit is None or (top_k is not None and top_k <= limit):
        return None
    message = f"generation {case.generation} needs top_k of at most {limit}: set it"
    return Refusal("THROTTLE_TOP_K", "top_k_is_given", f"{_POLICY}.top_k", message)


def top_k_is_left(case: Case) -> Refusal | None:
    """Refuse a TRANSFER, on arrival and outside a barrier, once top_k were accepted for that swarm in this generation.

    The smallest top_k counts: this packet's, the window's, and that of every TRANSFER accepted before it.
    """
    session, payload = case.session, case.packet.payload_as(TransferPayload)
    if session is None or _has_barrier(case, session):
        return None
    limits = [
        case.contract.window(case.generation).top_k_limit,
        payload.transfer_policy.top_k,
        session.smallest_top_k(payload.to_swarm),
    ]
    limit = min((limit for limit in limits if limit is not None), default=None)
    accepted = session.accepted_transfers(payload.to_swarm)
    if limit is None or accepted < limit:
        return None
    message = f"{accepted} transfers to {payload.to_swarm} were accepted in this generation, the limit is {limit}"
    return Refusal("THROTTLE_TOP_K", "top_k_is_left", f"{_POLICY}.top_k", message)


def _has_barrier(case: Case, session: SessionView) -> bool:
    phases = case.contract.barrier_phases
    return case.packet.run_phase in phases and session.run_phase in phases


def protocol_is_alive(case: Case) -> Refusal | None:
    """Refuse a TRANSFER of a blocked protocol or of its descendants: a new id does not help.

    Source: docs/specification/contract.md section 6.
    """
    decayed = case.facts.decayed_protocols
    if not decayed:
        return None
    if case.packet.payload_as(TransferPayload).protocol_id in decayed:
        path, protocol = "payload.protocol_id", case.packet.payload_as(TransferPayload).protocol_id
    else:
        parents = case.packet.lineage.parent_protocol_ids if case.packet.lineage is not None else ()
        blocked = [(index, parent) for index, parent in enumerate(parents) if parent in decayed]
        if not blocked:
            return None
        path, protocol = f"lineage.parent_protocol_ids[{blocked[0][0]}]", blocked[0][1]
    message = f"protocol {protocol} is blocked for low effectiveness: wait until it recovers"
    return Refusal("PROTOCOL_DECAYED", "protocol_is_alive", path, message)


def guard_facts(case: Case) -> dict[str, float | bool | str]:
    """Return the facts of scope `transfer`; top_k is absent when the packet has none."""
    policy = case.packet.payload_as(TransferPayload).transfer_policy
    sender, receiver = transfer_scores(case.packet, case.session)
    facts: dict[str, float | bool | str] = {
        "sender_score": sender,
        "receiver_score": receiver,
        "mode": policy.mode.value,
        "is_cross_use_case": is_cross_use_case(case.packet),
    }
    if policy.top_k is not None:
        facts["top_k"] = float(policy.top_k)
    return facts
