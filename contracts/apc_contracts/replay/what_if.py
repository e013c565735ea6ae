"""What another contract would have decided: each decision in isolation, in the session as it was.

The consequences of a change are not simulated: agents would have answered differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from apc_contracts.admission.recorded import SessionSnapshot, judge_in_session, judge_recorded, recorded_session
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import TransitionRefused
from apc_contracts.judging.dossier import Dossier, Said
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.replay.entries import RecordedHop, RecordedPacket, RecordedTransition
from apc_contracts.session.movement import COORDINATION
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ORCHESTRATOR
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
        if not _is_by_rank(refusal, record):
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


def _is_by_rank(refusal: Mapping[str, Any] | None, record: Mapping[str, Any]) -> bool:
    return refusal is not None and bool(record.get("rank")) and refusal["code"] == "THROTTLE_TOP_K"


def _said(verdict: Verdict) -> str:
    return verdict.kind.value if verdict.refusal is None else f"{verdict.kind.value} {verdict.refusal.code}"


# The rules of a team, tried on sessions of another contract.

MAX_CHANGES = 1_000
"""Changes that a trial keeps; it counts all."""


class Trial(WhatIf):
    """Judges again under a contract with rules, by the dossier that this contract would have kept.

    Evidence, counters and approvals are those of the packets that were accepted in truth. An approval counts as used
    when the tried rules have used it.
    """

    def __init__(self, contract: Contract) -> None:
        super().__init__(contract)
        self.count = 0
        """Number of decisions that would have been different."""
        self._session: Session | None = None
        self._dossier: Dossier | None = None
        self._said_of: dict[UUID, Said] = {}

    def note_packet(
        self, entry: RecordedPacket, received: ReceivedPacket, session: Session | None, verdict: Verdict
    ) -> None:
        packet, user = received.packet, dict(entry.facts).get("user")
        view = session if session is None else self._seen(session)
        other = judge_in_session(received, dict(entry.facts), view, self._contract)
        self._compare(entry.shard, entry.seq, received, _with_rule(verdict), _with_rule(other))
        if self._dossier is None or verdict.refusal is not None:
            return
        self._said_of[packet.packet_id] = self._dossier.said(packet, user)
        if verdict.kind is VerdictKind.ACCEPTED:
            self._accept(packet, user, other, entry.judged_at)

    def note_ruling(self, hop: RecordedHop, received: ReceivedPacket, record: Mapping[str, Any]) -> None:
        # What a pause or a barrier holds, the rules judge only when it is released.
        packet, refusal = received.packet, (hop.metadata or {}).get("refusal")
        if self._session is None or _is_by_rank(refusal, record):
            return
        view = _TriedSession(self._session, self._dossier, self._said_of, recorded_session(packet, dict(record)))
        other = judge_in_session(received, dict(record), view, self._contract)
        was = Verdict(VerdictKind.ACCEPTED) if refusal is None else Verdict(VerdictKind.REFUSED, Refusal.of(refusal))
        self._compare(hop.shard, hop.seq, received, _with_rule(was), _with_rule(other))
        if refusal is None:
            said = self._said_of.get(packet.packet_id)
            now = datetime.fromisoformat(record["now"])
            self._accept(packet, None if said is None else said.user, other, now)

    def note_transition(self, entry: RecordedTransition) -> None:
        """An overlay has the machine of its parent: nothing to compare."""

    def _seen(self, session: Session) -> "_TriedSession":
        if session is not self._session:
            self._session, self._said_of, self._dossier = session, {}, None
            document, team = session.document, self._contract.team
            if team is not None:
                self._dossier = Dossier(team, document.opened_at, session.members, document.spent, {})
        return _TriedSession(session, self._dossier, self._said_of)

    def _accept(self, packet: Packet, user: str | None, other: Verdict, now: datetime) -> None:
        if self._dossier is None or packet.sender.agent_id == ORCHESTRATOR:
            return
        values = other.facts.get("rules", {}) if other.refusal is None else {}
        self._dossier.accept(packet, user, values, now)
        if self._dossier.full_counter(packet, now) is None:
            self._dossier.count(packet, now)

    def _compare(self, shard: int, seq: int, received: ReceivedPacket, was: str, would_be: str) -> None:
        self.decisions += 1
        if was == would_be:
            return
        self.count += 1
        if len(self.changes) < MAX_CHANGES:
            packet = received.packet
            self.changes.append(Change(shard, seq, packet.packet_type.value, packet.packet_id, was, would_be))


def _with_rule(verdict: Verdict) -> str:
    refusal = verdict.refusal
    return _said(verdict) if refusal is None or refusal.code != "RULE_FAILED" else f"{_said(verdict)} {refusal.rule}"


class _TriedSession:
    """A session with another dossier, and what that has remembered of each packet.

    Of a held packet it is as `recorded`, when the packet was released: what followed has changed its state already.
    """

    def __init__(
        self,
        session: Session,
        dossier: Dossier | None,
        said_of: Mapping[UUID, Said],
        recorded: SessionSnapshot | None = None,
    ) -> None:
        self._session, self.dossier, self._said_of = session, dossier, said_of
        self._recorded = recorded

    def identity(self, packet_id: UUID) -> Identity | None:
        """Return what is remembered of a packet."""
        known = self._session.identity(packet_id)
        return None if known is None else msgspec.structs.replace(known, said=self._said_of.get(packet_id))

    def __getattr__(self, name: str) -> Any:
        is_remembered = self._recorded is None or name in _REMEMBERED
        return getattr(self._session if is_remembered else self._recorded, name)


_REMEMBERED = frozenset({"is_accepted", "effect", "budget_parts"})
"""What a snapshot of one packet does not have."""
