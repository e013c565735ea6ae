"""Held TRANSFERs at their barrier: judged together, ranked together, recorded as one ARBITRATION."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from apc_contracts.admission import judge_transfer, transfer_record
from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.facts import Facts
from apc_contracts.payloads.by_type import ArbitrationPayload, Candidate
from apc_contracts.protocol.transfers import RankedTransfer, rank_transfers, score_transfer
from apc_contracts.session import emissions
from apc_contracts.session.movement import Advance
from apc_contracts.vocabulary import PacketType


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
    a packet go into several: nobody can make the gate's own packet too large to send.
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
