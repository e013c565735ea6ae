"""A file of TRANSFERs arbitrated offline: judged one by one, ranked together.

Source: docs/specification/contract.md section 14.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from apc_contracts.admission.admit import judge_offline
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import Packet
from apc_contracts.protocol.transfers import TransferScore, rank_transfers, score_transfer
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import parse_packet


@dataclass(frozen=True, slots=True)
class TransferRow:
    """One input: its place in the file (from 0) and its outcome. No score for a packet that is no TRANSFER."""

    index: int
    packet_id: str | None
    selection_score: float | None = None
    recommended_accept: bool = False
    reason: str | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The JSON form; `reason` only where there is one."""
        fields: dict[str, Any] = {
            "index": self.index,
            "packet_id": self.packet_id,
            "selection_score": self.selection_score,
            "recommended_accept": self.recommended_accept,
        }
        return fields if self.reason is None else {**fields, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class TransferArbitration:
    """`selected` and `not_selected` best first, `rejected` in input order."""

    selected: tuple[TransferRow, ...]
    not_selected: tuple[TransferRow, ...]
    rejected: tuple[TransferRow, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The JSON form: {input_count, valid_transfer_count, selected, not_selected, rejected}."""
        valid = len(self.selected) + len(self.not_selected)
        return {
            "input_count": valid + len(self.rejected),
            "valid_transfer_count": valid,
            "selected": [row.document for row in self.selected],
            "not_selected": [row.document for row in self.not_selected],
            "rejected": [row.document for row in self.rejected],
        }


def arbitrate_offline(bodies: Iterable[bytes], contract: Contract, top_k: int) -> TransferArbitration:
    """Judge and rank packets; select at most `top_k` (>= 0) of those that their groups let through.

    Bytes that are no packet, other types and duplicates are rejected with a reason: that is not an error.
    """
    valid: dict[UUID, tuple[int, Packet]] = {}
    rejected: list[TransferRow] = []
    for index, body in enumerate(bodies):
        try:
            packet = parse_packet(body)
        except PacketRefused as error:
            rejected.append(TransferRow(index, _claimed_id(body), reason=str(error)))
            continue
        refusal = _objection(packet, contract, valid)
        if refusal is None:
            valid[packet.packet_id] = (index, packet)
        else:
            rejected.append(_rejected(index, packet, contract, refusal))
    selected, not_selected = _select(valid, contract, top_k)
    return TransferArbitration(selected, not_selected, tuple(rejected))


def _objection(packet: Packet, contract: Contract, seen: Mapping[UUID, object]) -> Refusal | None:
    if packet.packet_type is not PacketType.TRANSFER:
        message = f"{packet.packet_type} is no TRANSFER: only TRANSFERs are arbitrated"
        return Refusal("SCHEMA_INVALID", "is_transfer", "packet_type", message)
    if packet.packet_id in seen:
        message = "the packet_id stands in the file before: list each packet once"
        return Refusal("DUPLICATE_CONFLICT", "identity_is_free", "packet_id", message)
    return judge_offline(packet, contract).refusal


def _select(
    valid: Mapping[UUID, tuple[int, Packet]], contract: Contract, top_k: int
) -> tuple[tuple[TransferRow, ...], tuple[TransferRow, ...]]:
    selected: list[TransferRow] = []
    not_selected: list[TransferRow] = []
    for ranked in rank_transfers([packet for _, packet in valid.values()], contract):
        index = valid[ranked.packet.packet_id][0]
        if ranked.refusal is not None:
            not_selected.append(_row(index, ranked.packet, ranked.score, ranked.refusal.reason))
        elif len(selected) >= top_k:
            not_selected.append(_row(index, ranked.packet, ranked.score, f"beyond the {top_k} best of the file"))
        else:
            selected.append(_row(index, ranked.packet, ranked.score))
    return tuple(selected), tuple(not_selected)


def _rejected(index: int, packet: Packet, contract: Contract, refusal: Refusal) -> TransferRow:
    if packet.packet_type is not PacketType.TRANSFER:
        return TransferRow(index, str(packet.packet_id), reason=refusal.reason)
    return _row(index, packet, score_transfer(packet, contract), refusal.reason)


def _row(index: int, packet: Packet, score: TransferScore, reason: str | None = None) -> TransferRow:
    return TransferRow(index, str(packet.packet_id), score.selection_score, score.recommended_accept, reason)


def _claimed_id(body: bytes) -> str | None:
    """Return the packet_id of something that is no packet, where it is readable."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    claimed = document.get("packet_id") if isinstance(document, dict) else None
    return claimed if isinstance(claimed, str) else None
