"""EXECUTION, VALIDATION and PROMOTION: what the winner built, how it was judged, what is committed."""

from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.promotion import passes_open_metrics, passes_promotion
from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import ArtifactPayload, DecisionPayload, EvalPayload, OpenEvalPayload
from apc_contracts.session import emissions
from apc_contracts.session.document import KEYS_KEPT, SessionDocument
from apc_contracts.session.movement import Advance, start_timer
from apc_contracts.session.path import completion
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.vocabulary import ArtifactKind, CommitmentLevel, PacketType, RunPhase

COMPLETE = "non_promotable_complete"
LONGEST_URI = 2048
"""Limit for the state document and the PROTOCOL; a longer URI is left out, because the hash finds the bytes as well."""


def note_artifact(session: Session, opened: OpenPacket) -> None:
    """Keep an ARTIFACT of the winner in EXECUTION at VERIFIED until it is validated."""
    packet, winner = opened.packet, session.document.round_state.winner
    if session.state != "EXECUTION" or packet.run_phase is not RunPhase.EXECUTION or winner is None:
        return
    if session.swarm_of.get(packet.sender.agent_id) != winner.swarm_id:
        return
    execution = session.document.round_state.execution
    execution.is_falsified = False
    execution.artifact = packet.packet_id
    built = packet.payload_as(ArtifactPayload)
    execution.artifact_hash, uri = built.artifact_hash, built.artifact_uri
    execution.artifact_uri = uri if len(uri) <= LONGEST_URI else built.artifact_hash
    opened.completion = None


def note_eval(session: Session, opened: OpenPacket) -> None:
    """Take an EVAL on that ARTIFACT: the winner's completes EXECUTION, a validator's waits to be judged."""
    packet, execution = opened.packet, session.document.round_state.execution
    if execution.artifact is None or packet.trace.parent_packet_id != execution.artifact:
        return
    if not isinstance(packet.payload, EvalPayload):
        return
    swarm = session.swarm_of.get(packet.sender.agent_id)
    winner = session.document.round_state.winner
    if packet.run_phase is RunPhase.EXECUTION and winner is not None and swarm == winner.swarm_id:
        if len(execution.evals) < KEYS_KEPT:
            execution.evals.append(packet.packet_id)
    elif packet.run_phase is RunPhase.VALIDATION and session.state == "VALIDATION":
        opened.completion = None


def completion_in_task(packet: Packet, contract: Contract) -> str:
    """Return the event that ends a VERIFIED machine in a task: open metrics that pass are promoted."""
    payload = packet.payload
    is_passed = isinstance(payload, OpenEvalPayload) and passes_open_metrics(payload, contract)
    return "promotion_eligible" if is_passed else COMPLETE


def completion_of(session: Session, opened: OpenPacket, contract: Contract) -> str | None:
    """Return the event that ends a VERIFIED machine of a loaded packet, as counting it had decided."""
    document, packet = session.document, opened.packet
    if session.work is not None:
        return completion_in_task(packet, contract)
    execution = document.round_state.execution
    is_promoted = document.state in ("PROMOTION", "CLOSED")
    if is_promoted and packet.packet_id in (execution.artifact, execution.judged_by):
        return "promotion_eligible"
    if session.is_terminal:
        return COMPLETE
    rests = packet.packet_id == execution.artifact or _is_validating(opened, document)
    # A waiting packet keeps waiting: an ARTIFACT that another one replaced, a second validator's EVAL.
    rests = rests or any(progress.state == "VERIFIED" for progress in opened.recipients.values())
    return None if rests else COMPLETE


def _is_validating(opened: OpenPacket, document: SessionDocument) -> bool:
    packet, execution = opened.packet, document.round_state.execution
    is_of_round = opened.round == document.round and packet.run_phase is RunPhase.VALIDATION
    is_on_artifact = execution.artifact is not None and packet.trace.parent_packet_id == execution.artifact
    return is_of_round and is_on_artifact and isinstance(packet.payload, EvalPayload)


def judge(session: Session, packet: Packet, contract: Contract) -> None:
    """Judge a VERIFIED EVAL in VALIDATION by the promotion gate. Its own `pass` never widens it."""
    execution = session.document.round_state.execution
    payload = packet.payload
    if session.state != "VALIDATION" or execution.judged_by is not None or not isinstance(payload, EvalPayload):
        return
    if packet.run_phase is not RunPhase.VALIDATION or packet.trace.parent_packet_id != execution.artifact:
        return
    metrics = payload.metric_set
    result = passes_promotion(metrics, contract)
    execution.judged_by = packet.packet_id
    measured = metrics.model_dump(exclude_none=True)
    execution.metrics = {name: float(value) for name, value in measured.items()}
    execution.failed_metrics = list(result.failed)


def note_falsified(session: Session, packet_id: UUID) -> None:
    """Record that the bytes of an ARTIFACT failed verification. Kept here: its machines may have finished already."""
    execution = session.document.round_state.execution
    if packet_id == execution.artifact:
        execution.is_falsified = True


def validation_result(session: Session) -> bool | None:
    """Return the result of validation, None while it is not known.

    An ARTIFACT whose bytes fail verification, or that is retracted, fails.
    """
    execution = session.document.round_state.execution
    if execution.is_retracted or execution.is_falsified:
        return False
    opened = session.open.get(execution.artifact) if execution.artifact else None
    if execution.judged_by is None or execution.failed_metrics is None:
        return None
    if execution.failed_metrics:
        return False
    is_verified = opened is not None and opened.verification == "passed"
    return True if is_verified else None


def promote(moment: Advance) -> None:
    """Promote the validating EVAL and, through it, its parent ARTIFACT."""
    execution = moment.session.document.round_state.execution
    for packet_id in (execution.judged_by, execution.artifact):
        if packet_id is not None:
            completion.promote(moment.session, packet_id, moment.now, moment.effects, moment.contract)


def drop_failed(moment: Advance) -> None:
    """Exclude the candidate after a failed validation, and release what waited on it."""
    document = moment.session.document
    current = document.round_state
    if current.winner is not None:
        document.excluded.append(current.winner.packet_id)
    for packet_id in (current.execution.judged_by, current.execution.artifact):
        opened = moment.session.open.get(packet_id) if packet_id else None
        if opened is not None:
            opened.completion = COMPLETE
            completion.complete(moment.session, opened, moment.now, moment.effects, moment.contract)


def open_commons(moment: Advance) -> None:
    """Publish the ARTIFACT(PROTOCOL) of the promotion; agents may pass it on while its deadline runs."""
    document = moment.session.document
    execution, winner = document.round_state.execution, document.round_state.winner
    if execution.artifact is None or winner is None:
        return
    payload = ArtifactPayload(
        artifact_id=f"protocol-{winner.candidate_id}",
        artifact_kind=ArtifactKind.PROTOCOL,
        artifact_uri=execution.artifact_uri,
        artifact_hash=execution.artifact_hash,
    )
    artifact = emissions.emit(moment, PacketType.ARTIFACT, payload, parent=execution.artifact)
    document.round_state.protocol_artifact = artifact.packet_id
    document.round_state.has_generation_expired = False
    start_timer(moment, "generation", document.generation_deadline_ms)


def may_commit(moment: Advance) -> bool:
    """Return whether the ARTIFACT(PROTOCOL) was admitted and its DECISION DONE was not sent yet."""
    current = moment.session.document.round_state
    is_open = current.protocol_artifact is not None and not current.is_commit_sent
    return is_open and current.protocol_artifact in moment.session.identities


def commit_commons(moment: Advance) -> None:
    """Send DECISION DONE: the commons hold what was promoted."""
    document = moment.session.document
    execution, winner = document.round_state.execution, document.round_state.winner
    artifact = document.round_state.protocol_artifact
    if winner is None or artifact is None:
        return
    document.round_state.is_commit_sent = True
    done = DecisionPayload(
        decision_id=f"commons-{document.round}",
        recommendation=f"promote {execution.artifact_hash}",
        priority_distribution={winner.candidate_id: 1.0},
        next_actions=(),
        commitment_level=CommitmentLevel.DONE,
    )
    emissions.emit(moment, PacketType.DECISION, done, parent=artifact)
