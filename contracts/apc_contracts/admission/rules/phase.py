"""Rules for PHASE_MISMATCH, GENERATION_MISMATCH, PHASE_FORBIDS_TYPE, CONTENT_INVALID and missing bundles.

They check that a packet fits the phase, round and generation of its session, and its content the registered schema.
"""

from apc_contracts.admission.case import Case
from apc_contracts.answers import REMEDY, answer_schema, check_answer_schema
from apc_contracts.errors import SchemaUnusable
from apc_contracts.judging.session_view import SessionView
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import (
    AgentRequest,
    AnswerOutcome,
    AnswerSpec,
    ArtifactPayload,
    SignalPayload,
    typed_part,
)
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
    if fault is None:
        return None
    remedy = next((said for place, said in _REMEDIES.items() if fault.path.startswith(place)), None)
    return Refusal("CONTENT_INVALID", "content_fits", fault.path, fault.message, remedy=remedy)


def content_fault(case: Case) -> ContentFault | None:
    """Return why the content fits no schema, found now or recorded."""
    facts, (typed, path) = case.facts, typed_part(case.packet.payload)
    if facts.schemas is None:
        return facts.content_fault
    if typed is None:
        return _fault_of_fields(case) or facts.content_fault
    if isinstance(typed, AgentRequest) and typed.returns not in facts.schemas:
        return _unregistered(f"{path}.returns", typed.returns)
    schema = facts.schemas.get(typed.schema_id)
    if schema is None:
        return _unregistered(f"{path}.schema", typed.schema_id)
    return schema.fault(typed.content, f"{path}.content")


_ANSWER, _ASKED = "payload.answer.content", "payload.question.answer_schema"
_REMEDIES = {_ANSWER: REMEDY, _ASKED: "ask for fewer and plainer fields: `ctx.ask(returns=...)` names the model"}


def _fault_of_fields(case: Case) -> ContentFault | None:
    """Return why a question brings no usable schema of its answer, or why an answer of people does not fit it."""
    payload = case.packet.payload
    if not isinstance(payload, SignalPayload):
        return None
    if payload.question is not None and payload.question.answer_schema is not None:
        try:
            check_answer_schema(payload.question.answer_schema)
        except SchemaUnusable as error:
            path = f"{_ASKED}{error.place.removeprefix('$')}"
            return ContentFault(path, error.message, "")
    if payload.answer is None or case.session is None:
        return None
    places = case.session.question_places(case.packet.trace.parent_packet_id)
    body = None if places is None else places.answer_schema
    return _fault_of_answer(payload.answer, body)


def _fault_of_answer(answer: AnswerSpec, body: bytes | None) -> ContentFault | None:
    if body is None:
        message = "this question asks for no fields, or was erased: leave content out"
        return ContentFault(_ANSWER, message, "") if answer.content is not None else None
    if answer.outcome is not AnswerOutcome.APPROVED:
        return None
    try:
        schema = answer_schema(body)
    except SchemaUnusable:
        return ContentFault(_ANSWER, "this release does not take the schema of this question: deny it", "")
    if answer.content is None:
        message = "this question is answered with fields: give them, or deny it"
        return ContentFault(_ANSWER, message, schema.hash.hex())
    return schema.fault(answer.content, _ANSWER)


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
