"""Rules for PHASE_MISMATCH, GENERATION_MISMATCH, PHASE_FORBIDS_TYPE, CONTENT_INVALID and missing bundles.

They check that a packet fits the phase, round and generation of its session, and its content the registered schema.
"""

from apc_contracts.admission.case import Case
from apc_contracts.judging.session_view import SessionView
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import AgentRequest, ArtifactPayload, typed_part
from apc_contracts.schemas import ContentFault
from apc_contracts.vocabulary import PacketType


def phase_is_current(case: Case) -> Refusal | None:
    """Refuse a run_phase that is not the session's, nor the parent's if it was delivered before the phase changed."""
    session, phase = case.session, case.packet.run_phase
    if session is None or phase is session.run_phase:
        return None
    parent = case.parent
    if parent is not None and phase is parent.run_phase and parent.step < session.phase_step:
        return None
    message = f"{phase} is not the session's phase: it is in {_where(session)}"
    return Refusal("PHASE_MISMATCH", "phase_is_current", "run_phase", message)


def generation_is_open(case: Case) -> Refusal | None:
    """Refuse a generation of the future, and a TRANSFER that is not of the current round and generation."""
    session = case.session
    if session is None:
        return None
    generation = case.packet.trace.generation
    packet_round = session.round if case.parent is None else case.parent.round
    if packet_round == session.round:
        last = session.generation
        if generation < last and case.packet.packet_type is PacketType.TRANSFER:
            return _mismatch(session, f"a TRANSFER of generation {generation} is late")
    else:
        # It would escape the throttle of the current round: transfers of an older round are not counted.
        if case.packet.packet_type is PacketType.TRANSFER:
            return _mismatch(session, f"a TRANSFER under a parent of round {packet_round} is late")
        last = session.last_generation_of(packet_round)
    if generation <= last:
        return None
    return _mismatch(session, f"generation {generation} of round {packet_round} was not opened")


def phase_allows_type(case: Case) -> Refusal | None:
    """Refuse a type that the phase table does not allow (docs/specification/contract.md section 4).

    The orchestrator's arbitrations, decisions and protocols are allowed in every phase.
    """
    packet = case.packet
    if packet.packet_type in case.contract.policies[packet.run_phase].packet_types:
        return None
    if case.is_from_orchestrator and _is_exempt(case):
        return None
    allowed = sorted(case.contract.policies[packet.run_phase].packet_types - case.contract.control_types)
    message = f"{packet.run_phase} allows {', '.join(allowed)} and control types, not {packet.packet_type}"
    return Refusal("PHASE_FORBIDS_TYPE", "phase_allows_type", "packet_type", message)


def content_fits(case: Case) -> Refusal | None:
    """Refuse content whose schema is not registered, or which does not fit it."""
    fault = content_fault(case)
    return None if fault is None else Refusal("CONTENT_INVALID", "content_fits", fault.path, fault.message)


def content_fault(case: Case) -> ContentFault | None:
    """Return why the content fits no schema, found now or recorded."""
    facts, (typed, path) = case.facts, typed_part(case.packet.payload)
    if typed is None or facts.schemas is None:
        return facts.content_fault
    if isinstance(typed, AgentRequest) and typed.returns not in facts.schemas:
        return _unregistered(f"{path}.returns", typed.returns)
    schema = facts.schemas.get(typed.schema_id)
    if schema is None:
        return _unregistered(f"{path}.schema", typed.schema_id)
    return schema.fault(typed.content, f"{path}.content")


def _unregistered(path: str, schema_id: str) -> ContentFault:
    return ContentFault(path, f"there is no schema {schema_id}: register it with `apc schema register`", "")


def has_lineage(case: Case) -> Refusal | None:
    """Refuse a packet without lineage whose type requires it."""
    packet = case.packet
    if packet.lineage is not None or packet.packet_type not in case.contract.lineage_required:
        return None
    message = f"{packet.packet_type} must carry lineage: say protocol_id"
    return Refusal("LINEAGE_REQUIRED", "has_lineage", "lineage", message)


def has_proof(case: Case) -> Refusal | None:
    """Refuse a packet without proof_bundle whose type requires it."""
    packet = case.packet
    if packet.proof_bundle is not None or packet.packet_type not in case.contract.proof_required:
        return None
    message = f"{packet.packet_type} must carry a proof_bundle: give evidence_refs or falsifiers"
    return Refusal("PROOF_REQUIRED", "has_proof", "proof_bundle", message)


def _is_exempt(case: Case) -> bool:
    exempt, packet = case.contract.file.orchestrator_in_every_phase, case.packet
    if packet.packet_type in exempt.packet_types:
        return True
    return (
        packet.packet_type is PacketType.ARTIFACT
        and packet.payload_as(ArtifactPayload).artifact_kind in exempt.artifact_kinds
    )


def _where(session: SessionView) -> str:
    return f"{session.run_phase}, round {session.round}, generation {session.generation}"


def _mismatch(session: SessionView, what: str) -> Refusal:
    message = f"{what}: the session is in {_where(session)}"
    return Refusal("GENERATION_MISMATCH", "generation_is_open", "trace.generation", message)
