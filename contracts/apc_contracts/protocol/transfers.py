"""How TRANSFERs compare: scores, and which ones go through when the number is limited.

Source: docs/specification/contract.md section 5.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from apc_contracts.contract.contract import Contract
from apc_contracts.judging.session_view import SessionView
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import TransferPayload
from apc_contracts.vocabulary import TransferMode


@dataclass(frozen=True, slots=True)
class TransferScore:
    """The value of a TRANSFER. `total_score` is the selection score in 0..1; `components` its raw parts."""

    selection_score: float
    total_score: float
    recommended_accept: bool
    components: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RankedTransfer:
    """A TRANSFER and its place in its group, from 1; a refusal when it is beyond the group's top_k."""

    packet: Packet
    score: TransferScore
    rank: int
    refusal: Refusal | None = None


def rank_transfers(
    packets: Iterable[Packet], contract: Contract, session: SessionView | None = None
) -> list[RankedTransfer]:
    """Return valid TRANSFERs, best first; in each (session, generation, to_swarm) the best top_k have no refusal.

    ```python
    assert rank_transfers([], load_contract()) == []
    ```

    The smallest top_k of the group's packets and of the window counts. A higher selection score wins, a tie goes to the
    smaller packet_id, so the order of `packets` does not matter. With a session its verified scores count. Judge the
    packets first (`judge_transfer`): this ranks, it does not judge.
    """
    groups: dict[tuple[str, int, str], list[tuple[TransferScore, Packet]]] = {}
    for packet in packets:
        key = (packet.trace.session_id, packet.trace.generation, packet.payload_as(TransferPayload).to_swarm)
        groups.setdefault(key, []).append((score_transfer(packet, contract, session), packet))
    ranked = [row for group in groups.values() for row in _rank_group(group, contract)]
    return sorted(ranked, key=lambda row: _best_first((row.score, row.packet)))


def score_transfer(packet: Packet, contract: Contract, session: SessionView | None = None) -> TransferScore:
    """Return max(0, difference) + weight x confidence + bonus for cross-use-case; weights from the contract."""
    weights = contract.selection
    sender, receiver = transfer_scores(packet, session)
    components = {
        "score_difference": max(0.0, sender - receiver),
        "confidence": weights.confidence_weight * packet.confidence,
        "cross_use_case": weights.cross_use_case_bonus if is_cross_use_case(packet) else 0.0,
    }
    score = sum(components.values())
    return TransferScore(
        selection_score=score,
        total_score=min(1.0, score / weights.total_score_divisor),
        recommended_accept=sender > receiver,
        components=components,
    )


def transfer_scores(packet: Packet, session: SessionView | None) -> tuple[float, float]:
    """Return (sender, receiver) scores: verified ones may lower the sender's and raise the receiver's."""
    payload = packet.payload_as(TransferPayload)
    sender, receiver = payload.sender_score, payload.receiver_score
    if session is None:
        return sender, receiver
    verified = session.verified_scores
    sender = min(sender, verified.get(payload.from_swarm, sender))
    return sender, max(receiver, verified.get(payload.to_swarm, receiver))


def is_cross_use_case(packet: Packet) -> bool:
    """Return whether lineage or mode says that the protocol crosses use cases."""
    if packet.payload_as(TransferPayload).transfer_policy.mode is TransferMode.CROSS_USE_CASE:
        return True
    return packet.lineage is not None and packet.lineage.cross_use_case


def _rank_group(group: Sequence[tuple[TransferScore, Packet]], contract: Contract) -> list[RankedTransfer]:
    limit = _smallest_top_k([packet for _, packet in group], contract)
    rows = []
    for rank, (score, packet) in enumerate(sorted(group, key=_best_first), start=1):
        refusal = _beyond(rank, limit, packet) if limit is not None and rank > limit else None
        rows.append(RankedTransfer(packet, score, rank, refusal))
    return rows


def _smallest_top_k(packets: Sequence[Packet], contract: Contract) -> int | None:
    limits = [packet.payload_as(TransferPayload).transfer_policy.top_k for packet in packets]
    limits.append(contract.window(packets[0].trace.generation).top_k_limit)
    return min((limit for limit in limits if limit is not None), default=None)


def _best_first(scored: tuple[TransferScore, Packet]) -> tuple[float, int]:
    score, packet = scored
    return -score.selection_score, packet.packet_id.int


def _beyond(rank: int, limit: int, packet: Packet) -> Refusal:
    to_swarm = packet.payload_as(TransferPayload).to_swarm
    message = f"rank {rank} of the transfers to {to_swarm}, and only {limit} may go through"
    return Refusal("THROTTLE_TOP_K", "rank_transfers", "payload.transfer_policy.top_k", message)
