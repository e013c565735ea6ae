"""From verified EVALs to what is committed: the pool, arbitration and vetoes, the winner's work, its validation."""

from uuid import UUID

from apc_contracts.contract.contract import Contract, passes_open_metrics, passes_promotion
from apc_contracts.packet import Packet
from apc_contracts.payloads import by_type as payloads
from apc_contracts.payloads.by_type import (
    ArbitrationPayload,
    ArtifactPayload,
    DecisionPayload,
    EvalPayload,
    OpenEvalPayload,
)
from apc_contracts.session import emissions, lifecycle
from apc_contracts.session.document import CANDIDATES_KEPT, KEYS_KEPT, Arbitration, SessionDocument, VerifiedCandidate
from apc_contracts.session.movement import Advance, start_timer, transition
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.vocabulary import ArtifactKind, CommitmentLevel, PacketType, RunPhase

BASELINE = "baseline"
"""The candidate that predicts the trivial answer; its outcome is 0."""
COMPETING_PHASES = frozenset({RunPhase.DISCOVERY, RunPhase.REFINEMENT, RunPhase.CONVERGENCE})


def register_outcome(session: Session, packet: Packet) -> None:
    """Add a VERIFIED EVAL of a swarm to the candidates and to the swarm's verified score."""
    swarm = session.swarm_of.get(packet.sender.agent_id)
    payload = packet.payload
    if swarm is None or packet.run_phase not in COMPETING_PHASES or not isinstance(payload, EvalPayload):
        return
    document = session.document
    identity = session.identities[packet.packet_id]
    outcome = payload.metric_set.outcome
    kept = document.candidates.setdefault(swarm, [])
    kept.append(
        VerifiedCandidate(packet.packet_id, swarm, packet.sender.agent_id, outcome, identity.round, identity.generation)
    )
    # Excluded candidates go first, so that no number of vetoes empties a swarm's list.
    kept.sort(key=lambda one: (one.packet_id in document.excluded, one.rank))
    del kept[CANDIDATES_KEPT:]
    document.best_outcomes[swarm] = max(outcome, document.best_outcomes.get(swarm, 0.0))


def forget(session: Session, packet_id: UUID) -> None:
    """Remove a retracted EVAL from the candidates and scores."""
    document = session.document
    for swarm, kept in document.candidates.items():
        if any(candidate.packet_id == packet_id for candidate in kept):
            kept[:] = [candidate for candidate in kept if candidate.packet_id != packet_id]
            document.best_outcomes[swarm] = max((candidate.outcome for candidate in kept), default=0.0)


def pool_facts(document: SessionDocument) -> dict[str, float]:
    """Return how many candidates there are; the baseline is always one."""
    return {"candidates": float(len(emissions.ranked_candidates(document)) + 1)}


def why_no_winner(document: SessionDocument) -> str | None:
    """Return NOTHING_BEATS_BASELINE when no swarm candidate is left or the baseline would win; it wins ties."""
    ranked = emissions.ranked_candidates(document)
    return None if ranked and ranked[0].outcome > 0 else "NOTHING_BEATS_BASELINE"


def arbitrate(moment: Advance) -> None:
    """Send the ARBITRATION over the remaining pool, and open its veto window."""
    document = moment.session.document
    ranked = emissions.ranked_candidates(document)
    document.step += 1
    payload = ArbitrationPayload(
        arbitration_id=f"candidates-{document.round}",
        candidates=tuple(_rows(ranked, moment.session)),
        winner_candidate_id=ranked[0].candidate_id,
        scoring={candidate.candidate_id: float(rank) for rank, candidate in enumerate(ranked, start=1)},
    )
    packet = emissions.emit(moment, PacketType.ARBITRATION, payload, parent=ranked[0].packet_id)
    document.round_state.arbitration = Arbitration(packet.packet_id, ranked[0])
    start_timer(moment, "veto", document.veto_window_ms)


def end_veto_window(moment: Advance) -> str | None:
    """Decide when no veto is in force; else strike the winner and open a new window.

    Returns the reason to halt when no candidate is left.
    """
    document = moment.session.document
    arbitration = document.round_state.arbitration
    if arbitration is None:
        return None
    if not arbitration.is_vetoed or arbitration.is_overridden:
        _decide(moment, arbitration)
        return None
    return strike(moment, arbitration)


def strike(moment: Advance, arbitration: Arbitration) -> str | None:
    """Strike the winner, because of a veto or because its EVAL was retracted: a new ARBITRATION opens its own window.

    Returns the reason to halt when no candidate is left.
    """
    document = moment.session.document
    document.excluded.append(arbitration.winner)
    document.round_state.arbitration = None
    reason = why_no_winner(document)
    if reason is None:
        arbitrate(moment)
        moment.effects.is_sync_due = True
    return reason


def commit(moment: Advance, arbitration: Arbitration) -> None:
    """Make the approved candidate the session's winner, and end the time for a veto."""
    document = moment.session.document
    document.round_state.winner = arbitration.candidate
    document.deadlines.pop("veto", None)
    transition(moment, "decision_committed")


def _decide(moment: Advance, arbitration: Arbitration) -> None:
    winner = arbitration.candidate.candidate_id
    payload = DecisionPayload(
        decision_id=f"decision-{moment.session.round}-{moment.session.step}",
        recommendation=f"execute {winner}",
        priority_distribution={winner: 1.0},
        next_actions=("refit", "validate"),
        commitment_level=CommitmentLevel.APPROVED,
    )
    emissions.emit(moment, PacketType.DECISION, payload, parent=arbitration.packet_id)


def _rows(ranked: list[VerifiedCandidate], session: Session) -> list[payloads.Candidate]:
    best = ranked[0].outcome
    rows = [
        payloads.Candidate(
            candidate_id=candidate.candidate_id,
            packet_ref_ids=(candidate.packet_id,),
            score_components={"outcome": candidate.outcome, "round": float(candidate.round)},
            total_score=session.verified_score(best, candidate.outcome),
        )
        for candidate in ranked
    ]
    baseline = payloads.Candidate(
        candidate_id=BASELINE,
        packet_ref_ids=(),
        score_components={"outcome": 0.0},
        total_score=session.verified_score(best, 0.0),
    )
    return [*rows, baseline]


# EXECUTION, VALIDATION and PROMOTION: what the winner built, how it was judged, what is committed.

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


def judge_eval(session: Session, packet: Packet, contract: Contract) -> None:
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


def promote_execution(moment: Advance) -> None:
    """Promote the validating EVAL and, through it, its parent ARTIFACT."""
    execution = moment.session.document.round_state.execution
    for packet_id in (execution.judged_by, execution.artifact):
        if packet_id is not None:
            lifecycle.promote(moment, packet_id)


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
            lifecycle.complete(moment, opened)


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
