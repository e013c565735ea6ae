"""Held TRANSFERs at their barrier: judged together, ranked together, recorded as one ARBITRATION."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from apc_contracts.admission.admit import judge_transfer, transfer_record
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import ArbitrationPayload, Candidate
from apc_contracts.protocol.transfers import RankedTransfer, rank_transfers, score_transfer
from apc_contracts.session import emissions, knowledge, receipts, verdicts
from apc_contracts.session.knowledge import note_evidence, note_symbols, note_top_k, note_transfer
from apc_contracts.session.movement import Advance, barrier, may, open_generation, transition
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT, PacketType


def rule_transfers(packets: Sequence[Packet], moment: Advance) -> list[RankedTransfer]:
    """Return every held TRANSFER with its refusal or None. Their order of arrival does not matter."""
    session, contract = moment.session, moment.contract
    facts = _facts(moment)
    refused, eligible = [], []
    for packet in packets:
        refusal = judge_transfer(packet, session, facts, contract, session.generation)
        if refusal is None:
            eligible.append(packet)
        else:
            score = score_transfer(packet, contract, session)
            refused.append(RankedTransfer(packet, score, 0, refusal))
    refused.sort(key=lambda row: row.packet.packet_id.int)
    return [*rank_transfers(eligible, contract, session), *refused]


def emit_arbitration(rulings: Sequence[RankedTransfer], moment: Advance) -> None:
    """Emit the ARBITRATION packet: one candidate per TRANSFER and `none`; `selected:<id>` = rank in scoring.

    It carries the lineage of the leading TRANSFER, so that it is found under its protocol. More TRANSFERs than fit into
    a packet go into several: nobody can make the orchestrator's own packet too large to send.
    """
    ranks = {row.packet.packet_id: rank for rank, row in enumerate(_selected(rulings), start=1)}
    for first in range(0, len(rulings), emissions.MOST_CANDIDATES):
        part = rulings[first : first + emissions.MOST_CANDIDATES]
        _emit_part(part, 1 + first // emissions.MOST_CANDIDATES, ranks, moment)


def _emit_part(rulings: Sequence[RankedTransfer], number: int, ranks: Mapping[UUID, int], moment: Advance) -> None:
    none = moment.contract.selection.no_transfer_candidate
    selected = _selected(rulings)
    document = moment.session.document
    document.step += 1
    nothing = Candidate(candidate_id=none, packet_ref_ids=(), score_components={}, total_score=0.0)
    # The id names the subject: a part must not supersede the one before it.
    subject = f"transfers-{document.round}-{document.generation}"
    payload = ArbitrationPayload(
        arbitration_id=subject if number == 1 else f"{subject}-part-{number}",
        candidates=(*(_candidate(row) for row in rulings), nothing),
        winner_candidate_id=str(selected[0].packet.packet_id) if selected else none,
        scoring={f"selected:{row.packet.packet_id}": float(ranks[row.packet.packet_id]) for row in selected},
    )
    emissions.emit(moment, PacketType.ARBITRATION, payload, lineage=rulings[0].packet.lineage)


def _selected(rulings: Sequence[RankedTransfer]) -> list[RankedTransfer]:
    return [row for row in rulings if row.refusal is None]


def ruling_record(ruling: RankedTransfer, moment: Advance) -> dict[str, Any]:
    """Return the facts of a ruling and its rank, for the log: a replay recomputes the ruling from them."""
    refusal = ruling.refusal if ruling.rank == 0 else None
    facts = _facts(moment)
    record = transfer_record(ruling.packet, moment.session, facts, moment.contract, refusal, moment.session.generation)
    return record | {"rank": ruling.rank}


def _facts(moment: Advance) -> Facts:
    return Facts(now=moment.now, decayed_protocols=moment.decayed)


def _candidate(row: RankedTransfer) -> Candidate:
    packet_id = row.packet.packet_id
    flags = None if row.refusal is None else (row.refusal.code,)
    return Candidate(
        candidate_id=str(packet_id),
        packet_ref_ids=(packet_id,),
        score_components=dict(row.score.components),
        total_score=row.score.total_score,
        risk_flags=flags,
    )


# The barrier of a generation: when it closes, what it decides, what opens next.
#
# Source: docs/specification/contract.md section 10.


def may_close(moment: Advance) -> bool:
    """Return whether the generation may close.

    Every live swarm has its EVAL, nothing is being verified and no delivery to a live recipient is open, or time is up.
    """
    session = moment.session
    current = session.document.round_state
    if current.has_generation_expired:
        return True
    if any(swarm not in current.evaluated for swarm in session.live_swarms):
        return False
    return is_quiet(session)


def is_quiet(session: Session) -> bool:
    """Return whether no live recipient has an open delivery and nothing is being verified."""
    if _waited_for(session):
        return False
    return all(opened.verification != "pending" for opened in session.open.values())


def close(moment: Advance) -> None:
    """Close the generation: transfers, the limit, an accepted transfer, the window, until one moves the session."""
    document = moment.session.document
    closing = document.generation
    _note_absence(moment)
    accepted = _arbitrate(moment)
    barrier(moment, {"evaluated": sorted(document.round_state.evaluated), "generation": float(closing)})
    if _move_at_limit(moment) or _move_on_transfer(moment, accepted):
        return
    opening = {"generation": float(closing + 1)}
    open_generation(moment, closing + 1)
    if document.state == "INDEPENDENT_DISCOVERY" and may(moment, "generation_window_open", opening):
        transition(moment, "generation_window_open", opening)


def _move_at_limit(moment: Advance) -> bool:
    """Enter CONTROLLED_CONVERGENCE at the limit; return whether no further generation opens."""
    document = moment.session.document
    if document.generation < document.generation_limit:
        return False
    if document.state != "CONTROLLED_CONVERGENCE":
        if not may(moment, "generation_limit_reached"):
            return False
        transition(moment, "generation_limit_reached")
    if document.generation < document.last_generation:
        return False
    document.deadlines.pop("generation", None)
    return True


def _move_on_transfer(moment: Advance, accepted: int) -> bool:
    document = moment.session.document
    if not accepted or document.state != "SELECTIVE_TRANSFER" or not may(moment, "transfer_accepted"):
        return False
    transition(moment, "transfer_accepted")
    open_generation(moment, document.generation + 1)
    return True


def _note_absence(moment: Advance) -> None:
    """Stop waiting, until they speak, for swarms that missed two barriers and agents that missed the deadline."""
    document = moment.session.document
    for swarm in moment.session.live_swarms:
        if swarm in document.round_state.evaluated:
            document.missed_barriers.pop(swarm, None)
            continue
        missed = document.missed_barriers.get(swarm, 0) + 1
        document.missed_barriers[swarm] = missed
        if missed >= moment.contract.session.missed_barriers_limit:
            document.dead_swarms.append(swarm)
    if document.round_state.has_generation_expired:
        document.dead_agents.extend(_waited_for(moment.session))


def _waited_for(session: Session) -> list[str]:
    """Return the live recipients with an open delivery."""
    ignored = {*session.document.dead_agents, SUBSTRATE_RECIPIENT}
    return sorted(agent for agent in session.outstanding if agent not in ignored)


def _arbitrate(moment: Advance) -> int:
    """Judge the held TRANSFERs together; the outcome does not depend on their order of arrival."""
    session = moment.session
    held = [item for item in session.held.values() if not item.is_paused]
    if not held:
        return 0
    expired = [item for item in held if item.received.packet.expires <= moment.now]
    for item in expired:
        _deny(moment, item, _expired(item))
    by_id = {item.received.packet.packet_id: item for item in held if item not in expired}
    if not by_id:
        return 0
    rulings = rule_transfers([item.received.packet for item in by_id.values()], moment)
    emit_arbitration(rulings, moment)
    # Before the first release: all were judged by what the session held then.
    records = [ruling_record(ruling, moment) for ruling in rulings]
    for ruling, record in zip(rulings, records, strict=True):
        item = by_id[ruling.packet.packet_id]
        if ruling.rank:
            note_top_k(session, ruling.packet)
        if ruling.refusal is not None:
            _deny(moment, item, ruling.refusal, record)
        else:
            _release(moment, item, record)
    return sum(ruling.refusal is None for ruling in rulings)


def _release(moment: Advance, item: HeldPacket, record: dict[str, Any]) -> None:
    session = moment.session
    packet = item.received.packet
    session.held.pop(packet.packet_id)
    session.identities[packet.packet_id].step = session.step
    note_symbols(session, packet)
    note_evidence(session, packet, moment.contract)
    note_transfer(session, packet)
    opened = verdicts.route(moment, item.received, item.recipients, item.round, was_held=True, record=record)
    receipts.expect_acks(moment, opened)
    knowledge.judge_arrival(moment, opened)
    verdicts.apply_locally(moment, opened)


def _deny(moment: Advance, item: HeldPacket, refusal: Refusal, record: dict[str, Any] | None = None) -> None:
    moment.session.held.pop(item.received.packet.packet_id)
    verdicts.deny(moment, item.received, refusal, record)


def deny_all(moment: Advance, code: str, message: str) -> None:
    """Refuse what is still held, because the session or its pause has ended."""
    for item in list(moment.session.held.values()):
        _deny(moment, item, Refusal(code, "session", "trace.session_id", message))


def _expired(item: HeldPacket) -> Refusal:
    expires = item.received.packet.expires.isoformat()
    return Refusal("EXPIRED", "expired", "expires_at", f"expired at {expires} before its barrier; send it again")
