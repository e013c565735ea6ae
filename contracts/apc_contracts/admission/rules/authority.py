"""Rules for NOT_AUTHORIZED and NOT_RETRACTABLE: what the sender may do.

Source: docs/specification/contract.md section 10, "Who may do what".
"""

from uuid import UUID

from apc_contracts.admission.case import Case
from apc_contracts.admission.rules.waits import is_answer
from apc_contracts.identity.ids import is_key_of
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import DecisionPayload, RetractionPayload, SignalFields, TransferPayload
from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType, Right, RunPhase, Signal


def speaks_for_itself(case: Case) -> Refusal | None:
    """Refuse a role or swarm that differs from the sender's registration."""
    actor, sender = case.packet.sender, case.sender
    if sender is None:
        return None
    if actor.role != sender.role:
        message = f"{case.sender_id} is registered with role {sender.role}: send with that role"
        return _refusal("speaks_for_itself", "sender.role", message)
    if actor.swarm_id != sender.swarm_id:
        message = f"{case.sender_id} is registered in swarm {sender.swarm_id}: send with that swarm_id"
        return _refusal("speaks_for_itself", "sender.swarm_id", message)
    return None


def is_member(case: Case) -> Refusal | None:
    """Refuse a sender that is neither a member of the session nor has a right that needs no membership."""
    session, sender = case.session, case.sender
    if session is None or session.is_member(case.sender_id):
        return None
    if case.packet.packet_type is PacketType.SIGNAL and is_answer(case):
        return None
    if sender is not None and not sender.rights.isdisjoint(case.contract.rights.needs_no_membership):
        return None
    message = f"{case.sender_id} is no member of session {session.session_id}: name it in the SessionSpec"
    return _refusal("is_member", "sender.agent_id", message)


def leaves_reserved_ids(case: Case) -> Refusal | None:
    """Refuse packets about ids that begin with `_`: they are reserved for the bus.

    A SessionSpec cannot name them, nor the orchestrator.
    """
    trace = case.packet.trace
    if trace.run_id[0] == "_":
        return _reserved("trace.run_id", trace.run_id)
    if trace.task_id[0] == "_":
        return _reserved("trace.task_id", trace.task_id)
    return None


def spec_leaves_reserved_ids(case: Case) -> Refusal | None:
    """Refuse a SessionSpec in which a swarm, agent or task has a reserved id."""
    spec = case.packet.payload_as(SignalFields).session
    if not isinstance(spec, SessionSpec | TaskSessionSpec):
        return None
    named = [(f"members[{index}]", agent) for index, agent in enumerate(spec.members)]
    named += [(f"task_ids[{index}]", task) for index, task in enumerate(spec.task_ids)]
    for index, swarm in enumerate(spec.swarms if isinstance(spec, SessionSpec) else ()):
        named.append((f"swarms[{index}].swarm_id", swarm.swarm_id))
        named += [(f"swarms[{index}].agents[{place}]", agent) for place, agent in enumerate(swarm.agents)]
    for path, name in named:
        if name[0] == "_" or name == ORCHESTRATOR:
            return _reserved(f"payload.session.{path}", name)
    return None


def may_signal(case: Case) -> Refusal | None:
    """Refuse START STOP PAUSE RESUME CANCEL and VETO without the right, and SYNC with a state from agents."""
    payload = case.packet.payload_as(SignalFields)
    needed = case.contract.rights.signals.get(payload.signal)
    if needed is not None and not _has(case, needed):
        if not _opens_own_schedule(case):
            return _refusal("may_signal", "payload.signal", f"{payload.signal} needs the right {needed}")
        if not _has(case, Right.SCHEDULE):
            message = f"START of a schedule needs the right {Right.SCHEDULE}"
            return _refusal("may_signal", "payload.signal", message)
    if payload.signal is Signal.SYNC and payload.session is not None:
        message = "only the orchestrator says where a session stands: send SYNC without session"
        return _refusal("may_signal", "payload.session", message)
    return None


def _opens_own_schedule(case: Case) -> bool:
    """Return whether this is the START of a Tick, which the right `schedule` permits.

    The sender is a member and decides alone, nobody reviews, and both ids follow from its keys: it takes no id that
    another would use.
    """
    packet, sender = case.packet, case.sender_id
    payload = packet.payload_as(SignalFields)
    spec = payload.session
    return (
        payload.signal is Signal.START
        and isinstance(spec, TaskSessionSpec)
        and sender in spec.members
        and spec.deciders == (sender,)
        and not spec.reviewers
        and is_key_of(packet.packet_id, sender)
        and _names_key_of(packet.trace.session_id, sender)
    )


def _names_key_of(session_id: str, agent_id: str) -> bool:
    try:
        key = UUID(session_id)
    except ValueError:
        return False
    return str(key) == session_id and is_key_of(key, agent_id)


def opens_once(case: Case) -> Refusal | None:
    """Refuse a START of a session that is open already."""
    if case.packet.payload_as(SignalFields).signal is not Signal.START:
        return None
    message = "the session is open already: START begins a session of a new session_id"
    return _refusal("opens_once", "trace.session_id", message)


def transfers_from_own_swarm(case: Case) -> Refusal | None:
    """Refuse a TRANSFER from a swarm other than the sender's own."""
    swarm_id = case.packet.sender.swarm_id
    if case.packet.payload_as(TransferPayload).from_swarm == swarm_id:
        return None
    message = f"{case.sender_id} transfers for its own swarm {swarm_id} only: set from_swarm to it"
    return _refusal("transfers_from_own_swarm", "payload.from_swarm", message)


def retracts_its_own(case: Case) -> Refusal | None:
    """Refuse a RETRACTION by anyone but the packet's sender or the orchestrator."""
    session = case.session
    target = (
        session.identity(case.packet.payload_as(RetractionPayload).target_packet_id) if session is not None else None
    )
    if target is None or target.sender == case.sender_id:
        return None
    message = f"{target.sender} sent that packet: only it or the orchestrator may retract it"
    return _refusal("retracts_its_own", "payload.target_packet_id", message)


def may_arbitrate(case: Case) -> Refusal | None:
    """Refuse an ARBITRATION without the right while the session is in arbitration, where it would move the session."""
    session = case.session
    if session is None or session.run_phase is not RunPhase.ARBITRATION:
        return None
    return _needs_right_to_move(case, "may_arbitrate", "packet_type")


def may_decide(case: Case) -> Refusal | None:
    """Refuse a DECISION APPROVED under an ARBITRATION without the right: it moves the session."""
    if case.packet.payload_as(DecisionPayload).commitment_level is not CommitmentLevel.APPROVED:
        return None
    if case.parent is None or case.parent.packet_type is not PacketType.ARBITRATION:
        return None
    return _needs_right_to_move(case, "may_decide", "payload.commitment_level")


def may_validate(case: Case) -> Refusal | None:
    """Refuse a promoting EVAL from an agent that is no validator, or is of the swarm that made the ARTIFACT.

    Promoting is an EVAL of VALIDATION on an ARTIFACT of EXECUTION.
    """
    parent = case.parent
    if case.packet.run_phase is not RunPhase.VALIDATION or parent is None:
        return None
    if parent.packet_type is not PacketType.ARTIFACT or parent.run_phase is not RunPhase.EXECUTION:
        return None
    right = case.contract.rights.promotes
    if not _has(case, right):
        return _refusal("may_validate", "sender.agent_id", f"an EVAL that promotes needs the right {right}")
    if parent.swarm_id == case.packet.sender.swarm_id:
        message = f"swarm {parent.swarm_id} made that ARTIFACT: another swarm must validate it"
        return _refusal("may_validate", "sender.swarm_id", message)
    return None


def target_is_retractable(case: Case) -> Refusal | None:
    """Refuse a RETRACTION unless the target is a packet of this session that was not retracted before."""
    session, target_id = case.session, case.packet.payload_as(RetractionPayload).target_packet_id
    target = session.identity(target_id) if session is not None else None
    if target is not None and not target.retracted:
        return None
    why = "is no packet of this session" if target is None else "was retracted before"
    message = f"{target_id} {why}: retract a packet of this session, once"
    return Refusal("NOT_RETRACTABLE", "target_is_retractable", "payload.target_packet_id", message)


def _needs_right_to_move(case: Case, rule: str, path: str) -> Refusal | None:
    right = case.contract.rights.moves_session
    if _has(case, right):
        return None
    return _refusal(rule, path, f"a {case.packet.packet_type} that moves the session needs the right {right}")


def _has(case: Case, right: Right) -> bool:
    return case.sender is not None and right in case.sender.rights


def _reserved(path: str, name: str) -> Refusal:
    return _refusal("leaves_reserved_ids", path, f"the id {name} is reserved: choose another")


def _refusal(rule: str, path: str, message: str) -> Refusal:
    return Refusal("NOT_AUTHORIZED", rule, path, message)
