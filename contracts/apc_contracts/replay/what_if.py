"""What another contract would have decided: each decision in isolation, in the session as it was.

The consequences of a change are not simulated: agents would have answered differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from apc_contracts.admission.recorded import judge_in_session, judge_recorded
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import TransitionRefused
from apc_contracts.judging.verdict import Verdict
from apc_contracts.replay.entries import RecordedHop, RecordedPacket, RecordedTransition
from apc_contracts.session.movement import COORDINATION
from apc_contracts.session.session import Session
from apc_contracts.wire.parsing import ReceivedPacket


@dataclass(frozen=True, slots=True)
class Change:
    """One decision that would have been different. `what` is a packet_type or a transition's event."""

    shard: int
    seq: int
    what: str
    packet_id: UUID
    """The packet, or the cause of the transition."""
    was: str
    would_be: str


class WhatIf:
    """Judges again under another contract and collects the changes."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.changes: list[Change] = []
        self.decisions = 0
        """Number of decisions examined."""

    def note_packet(
        self, entry: RecordedPacket, received: ReceivedPacket, session: Session | None, verdict: Verdict
    ) -> None:
        """Compare the verdict on a packet on arrival."""
        other = judge_in_session(received, dict(entry.facts), session, self._contract)
        self._note(entry, received, verdict, other)

    def note_ruling(self, hop: RecordedHop, received: ReceivedPacket, record: Mapping[str, Any]) -> None:
        """Compare the ruling on a held packet at its barrier or at RESUME, by the facts of that ruling.

        How many TRANSFERs go through at a barrier is not counted again: a THROTTLE_TOP_K by rank stays.
        """
        other = judge_recorded(received, dict(record), self._contract)
        refusal = (hop.metadata or {}).get("refusal")
        if refusal is not None and record.get("rank") and refusal["code"] == "THROTTLE_TOP_K":
            return
        was = "accepted" if refusal is None else f"refused {refusal['code']}"
        self._compare(hop.shard, hop.seq, received, was, _said(other))

    def note_transition(self, entry: RecordedTransition) -> None:
        """Compare a step of the session's machine, by the facts of its guard. Barriers are skipped."""
        if entry.from_state == entry.to_state:
            return
        self.decisions += 1
        try:
            target = self._contract.machine(COORDINATION).step(entry.from_state, entry.event, dict(entry.facts))
        except TransitionRefused as error:
            target = f"{entry.from_state}: {error.why}"
        if target != entry.to_state:
            self.changes.append(Change(entry.shard, entry.seq, entry.event, entry.cause, entry.to_state, target))

    def _note(self, entry: RecordedPacket, received: ReceivedPacket, verdict: Verdict, other: Verdict) -> None:
        self._compare(entry.shard, entry.seq, received, _said(verdict), _said(other))

    def _compare(self, shard: int, seq: int, received: ReceivedPacket, was: str, would_be: str) -> None:
        self.decisions += 1
        if was != would_be:
            packet = received.packet
            self.changes.append(Change(shard, seq, packet.packet_type.value, packet.packet_id, was, would_be))


def _said(verdict: Verdict) -> str:
    return verdict.kind.value if verdict.refusal is None else f"{verdict.kind.value} {verdict.refusal.code}"
