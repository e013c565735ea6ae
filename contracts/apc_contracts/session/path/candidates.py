"""From the pool of verified EVALs to a committed decision: arbitration, vetoes, the winner."""

from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads import by_type as payloads
from apc_contracts.payloads.by_type import ArbitrationPayload, DecisionPayload, EvalPayload
from apc_contracts.session import emissions
from apc_contracts.session.document import CANDIDATES_KEPT, Arbitration, SessionDocument, VerifiedCandidate
from apc_contracts.session.movement import Advance, start_timer, transition
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import CommitmentLevel, PacketType, RunPhase

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
    """Commit to the arbitration in force."""
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
