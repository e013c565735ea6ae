"""Replay one session, a log batch at a time: every verdict, hop and transition must follow from its inputs.

The gate's own `judge` and `advance` run over the recorded inputs; their results must equal the record. Pure: the caller
reads the entries and passes them in.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from apc_contracts.admission.admit import judge_held
from apc_contracts.admission.record import note_place
from apc_contracts.admission.recorded import judge_in_session, recorded_facts
from apc_contracts.admission.rules.routing import asks_role
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import ContractError, PacketRefused
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Verdict, VerdictKind
from apc_contracts.limits import DocumentLimits
from apc_contracts.packet import Packet
from apc_contracts.protocol.effectiveness import read_decision
from apc_contracts.replay.entries import (
    Entry,
    RecordedHop,
    RecordedPacket,
    RecordedTransition,
    ReplayDiffers,
    ReplayImpossible,
    as_json,
    envelope_columns,
)
from apc_contracts.replay.hop_receipts import is_substrate_confirm, receipts_of, verification_of
from apc_contracts.replay.what_if import WhatIf
from apc_contracts.session.advance import Advanced, advance, confirm_substrate
from apc_contracts.session.emissions import timer
from apc_contracts.session.events import timer_kind
from apc_contracts.session.knowledge import decay_packet
from apc_contracts.session.lifecycle import ends_at_gate, resolve_recipients
from apc_contracts.session.movement import FinalVerdict, Hop, PacketInput, ReceiptsInput, ReleaseInput, Transition
from apc_contracts.session.opening import open_session
from apc_contracts.session.receipts import JUDGED_AT, planned_at
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.session.task import STALL
from apc_contracts.session.verdicts import hops_without_session, identity_without_session
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, PRESENCE_SESSION
from apc_contracts.wire.parsing import ReceivedPacket, read_packet, seal

# The entries of one log batch during a replay: the next expected one, and where it differs.

NOTHING = "nothing"

EntryT = TypeVar("EntryT", bound=Entry)


class RecordedBatch:
    """A session's entries of one batch, in the order of the log, and the position of the replay."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = entries
        self.position = 0

    @property
    def current(self) -> Entry | None:
        """The next entry; None at the end."""
        return self._entries[self.position] if self.position < len(self._entries) else None

    def next(self, kind: type[EntryT], wanted: str) -> EntryT:
        """Return the next entry.

        Raises:
            ReplayDiffers: it is of another kind than expected, or there is none.
        """
        entry = self.current
        if entry is None:
            differ(self._entries[-1], "the entries that follow in its batch", NOTHING, wanted)
        if not isinstance(entry, kind):
            differ(entry, entry.table, f"an entry of {entry.table}", wanted)
        self.position += 1
        return entry

    def decay_of(self, final: FinalVerdict) -> RecordedPacket | None:
        """Return the next entry if it records a protocol's block or recovery caused by this verdict."""
        entry = self.current
        if not isinstance(entry, RecordedPacket) or "decay" not in entry.facts:
            return None
        return entry if entry.envelope["parent_packet_id"] == final.packet.packet_id else None

    def decayed(self) -> frozenset[str]:
        """Return the blocked protocols in the recorded rulings of the current input: only the ledger knows them all."""
        blocked: set[str] = set()
        for entry in self._entries[self.position :]:
            if isinstance(entry, RecordedPacket):
                if entry.envelope["sender_agent_id"] != ORCHESTRATOR:
                    break
            elif isinstance(entry, RecordedHop):
                blocked.update((entry.metadata or {}).get("facts", {}).get("decayed", ()))
        return frozenset(blocked)

    def judged_at(self) -> datetime | None:
        """Return the time at which all inputs of the batch were judged.

        Packets carry it; without a packet it is in the orchestrator's own hops, in the due time of a retry, or in the
        metadata of a hop. If there is none of these, nothing depends on it; logs from before `judged_at` in the
        metadata do not say when such receipts started the stall timer.
        """
        for entry in self._entries:
            if isinstance(entry, RecordedPacket):
                return entry.judged_at
        for entry in self._entries:
            if isinstance(entry, RecordedHop) and entry.actor == ORCHESTRATOR and entry.occurred_at:
                return entry.occurred_at[-1]
        for entry in self._entries:
            said = (entry.metadata or {}) if isinstance(entry, RecordedHop) else {}
            if JUDGED_AT in said:
                return datetime.fromisoformat(said[JUDGED_AT])
            if "retry" in said:
                return planned_at(dict(said)["retry"])
        return None


def compare(entry: Entry, column: str, recorded: Any, recomputed: Any) -> None:
    """Raise ReplayDiffers when the recomputed column differs from the recorded one."""
    if recorded != recomputed:
        differ(entry, f"{entry.table}.{column}", recorded, recomputed)


def differ(entry: Entry, what: str, recorded: Any, recomputed: Any) -> NoReturn:
    """Raise ReplayDiffers at this entry."""
    raise ReplayDiffers(entry.shard, entry.seq, what, recorded, recomputed)


def _is_resolved(packet: Packet, recipients: tuple[str, ...]) -> bool:
    """Return whether an entry has other recipients than its packet: of a BROADCAST, a role, or the client of a run."""
    is_told = recipients == (ORCHESTRATOR,) and ends_at_gate(packet)
    return packet.recipients[0].agent_id == ALL_RECIPIENTS or asks_role(packet) or is_told


def _first_difference(path: str, recorded: Any, recomputed: Any) -> tuple[str, Any, Any]:
    """Return the first place at which two JSON values differ, and the two values there; None where one has none."""
    if isinstance(recorded, Mapping) and isinstance(recomputed, Mapping):
        for name in sorted(recorded.keys() | recomputed.keys()):
            if recorded.get(name) != recomputed.get(name) or (name in recorded) is not (name in recomputed):
                return _first_difference(f"{path}.{name}", recorded.get(name), recomputed.get(name))
    return path, recorded, recomputed


class SessionReplay:
    """Replays one session from its entries and compares as it goes.

    `contract_of` returns the contract behind a contract_hash, None when it is unknown. `session` is the state after the
    entries taken so far; None before its START.
    """

    def __init__(
        self,
        session_id: str,
        contract_of: Callable[[bytes], Contract | None],
        what_if: WhatIf | None = None,
    ) -> None:
        self._session_id = session_id
        self._contract_of = contract_of
        self._what_if = what_if
        self.session: Session | None = None
        self.packets = 0
        self.hops = 0
        self.transitions = 0
        self._before_session: dict[UUID, Identity] = {}
        self._contract: Contract | None = None
        self._batch = RecordedBatch(())
        self._now: datetime | None = None
        self._held: dict[UUID, ReceivedPacket] = {}
        """For `what_if`: packets whose ruling is still to come."""
        self._knows_stall = True
        """The log says when the stall timer was started; one from before `judged_at` in the metadata may not."""

    def take(self, entries: Sequence[Entry]) -> None:
        """Replay all entries of this session in one log batch, in the order of the log.

        Raises:
            ReplayDiffers: the first entry that differs from its recomputation.
            ReplayImpossible: a body or a contract that the replay needs is missing.
        """
        self._batch = RecordedBatch(entries)
        is_begun = False
        while (entry := self._batch.current) is not None:
            try:
                if not is_begun:
                    self._now, is_begun = self._batch.judged_at() or self._now, True
                self._take_input(entry)
            except (ReplayDiffers, ReplayImpossible):
                raise
            except (ContractError, LookupError, ValueError, TypeError, AttributeError) as error:
                # Entries that the orchestrator never wrote can have any shape; they may not even be replayable.
                raise ReplayDiffers(entry.shard, entry.seq, entry.table, "an entry", repr(error)) from error

    def check_document(self, document: Mapping[str, Any], entry: tuple[int, int]) -> None:
        """Compare the session with its state document, as the projection `sessions` holds it.

        `entry` is the last entry (shard, seq) that was taken. Raises ReplayDiffers.
        """
        mine = None if self.session is None else as_json(self.session.document)
        # A field that a later version added is null in a session that was opened before.
        added = {name for name in mine or {} if name not in document and (mine or {})[name] is None}
        if mine is None or mine.keys() - added != document.keys():
            raise ReplayDiffers(*entry, "sessions.document", sorted(document), sorted(mine or {}))
        for name, value in document.items():
            recomputed = mine[name]
            if name == "deadlines" and not self._knows_stall and STALL in value and STALL in recomputed:
                recomputed = recomputed | {STALL: value[STALL]}
            if recomputed != value:
                raise ReplayDiffers(*entry, *_first_difference(f"sessions.document.{name}", value, recomputed))

    def _take_input(self, entry: Entry) -> None:
        """Replay an input of the gate: an entry that no earlier entry caused."""
        if isinstance(entry, RecordedPacket):
            self._take_packet(self._next_packet(None), None)
        elif isinstance(entry, RecordedHop):
            self._take_hop(entry)
        else:
            differ(entry, "coordination_events", f"{entry.event} to {entry.to_state}", NOTHING)

    def _take_packet(self, entry: RecordedPacket, expected: Packet | None) -> None:
        contract = self._contract_for(entry)
        received = self._read(entry, contract)
        packet = received.packet
        if packet.sender.agent_id == ORCHESTRATOR:
            self._check_own(entry, received, expected or self._timer(entry, received.packet, contract))
        verdict = self._judge(entry, received, contract)
        is_refused = verdict.refusal is not None
        if self.session is None and not is_refused and self._session_id != PRESENCE_SESSION:
            self.session = open_session(packet, entry.judged_at, contract, verdict.facts.get("places"))
            for packet_id, identity in self._before_session.items():
                self.session.remember(packet_id, identity)
        note_place(verdict.facts, packet, self.session, tuple(entry.recipients))
        compare(entry, "facts", dict(entry.facts), as_json(verdict.facts))
        self._check_recipients(entry, packet)
        self.packets += 1
        if self.session is None:
            self._pass_without_session(entry, received, verdict)
            return
        decayed = self._batch.decayed()
        given = PacketInput(received, verdict, entry.recipients, entry.cause_packet_id, entry.judged_at, decayed)
        advanced = advance(self.session, given, contract)
        identity = self.session.identities[packet.packet_id]
        compare(entry, "round", entry.round, identity.round)
        # A packet released by a barrier that it closed itself carries the step before it.
        compare(entry, "step", entry.step, identity.step)
        self._follow(advanced, packet.packet_id)

    def _read(self, entry: RecordedPacket, contract: Contract) -> ReceivedPacket:
        if entry.body is None:
            message = f"the body of packet {entry.packet_id} is encrypted or was erased"
            raise ReplayImpossible(entry.shard, entry.seq, message)
        bounds = contract.limits
        try:
            limits = DocumentLimits(bounds.packet_bytes, bounds.nesting_levels, bounds.nodes, is_logged=True)
            received = read_packet(entry.body, limits)
        except PacketRefused as error:
            raise ReplayDiffers(entry.shard, entry.seq, "agent_packets.body_stored", "a packet", error) from error
        compare(entry, "packet_hash", entry.packet_hash.hex(), received.packet_hash.hex())
        compare(entry, "packet_id", entry.packet_id, received.packet.packet_id)
        for name, value in envelope_columns(received.packet).items():
            compare(entry, name, entry.envelope[name], value)
        return received

    def _judge(self, entry: RecordedPacket, received: ReceivedPacket, contract: Contract) -> Verdict:
        facts = dict(entry.facts)
        compare(entry, "facts.now", facts.get("now"), entry.judged_at.isoformat())
        compare(entry, "facts.user", facts.get("user") or "", entry.user_id)
        cause = None if entry.cause_packet_id is None else str(entry.cause_packet_id)
        compare(entry, "facts.cause", facts.get("cause"), cause)
        verdict = judge_in_session(received, facts, self.session, contract)
        compare(entry, "verdict", entry.verdict, verdict.kind.value)
        refusal = None if verdict.refusal is None else verdict.refusal.document
        compare(entry, "refusal", entry.refusal, refusal)
        if self._what_if is not None:
            self._what_if.note_packet(entry, received, self.session, verdict)
            if verdict.kind is VerdictKind.HELD:
                self._held[received.packet.packet_id] = received
        return verdict

    def _check_own(self, entry: RecordedPacket, received: ReceivedPacket, expected: Packet | None) -> None:
        """Check that a packet of the orchestrator follows from the session, byte for byte."""
        if expected is None:
            differ(entry, "agent_packets", f"{entry.envelope['packet_type']} of the orchestrator", NOTHING)
        body = seal(expected).body
        if body != received.body:
            differ(entry, "agent_packets.body_stored", received.body.decode(), body.decode())

    def _timer(self, entry: RecordedPacket, packet: Packet, contract: Contract) -> Packet | None:
        """Return the timer packet that this one claims to be, if such a deadline runs and has passed."""
        session = self.session
        kind = timer_kind(session, packet) if session is not None else None
        if session is None or kind is None or session.document.deadlines[kind] > entry.judged_at:
            return None
        return timer(session, kind, entry.judged_at, contract)

    def _check_recipients(self, entry: RecordedPacket, packet: Packet) -> None:
        """Check the recipients; whom only the registry knows is taken as recorded: BROADCAST, role, client of a run."""
        if self.session is None or not _is_resolved(packet, entry.recipients):
            named = tuple(recipient.agent_id for recipient in packet.recipients)
            compare(entry, "recipients", entry.recipients, named)
        elif packet.recipients[0].agent_id == ALL_RECIPIENTS and not {*entry.recipients} <= self.session.members:
            nobody = resolve_recipients(packet, self.session, {})
            differ(entry, "agent_packets.recipients", entry.recipients, f"members only, or {nobody}")

    def _pass_without_session(self, entry: RecordedPacket, received: ReceivedPacket, verdict: Verdict) -> None:
        refusal = verdict.refusal
        for hop in hops_without_session(received.packet, refusal, entry.judged_at):
            self._expect_hop(hop)
        if refusal is not None:
            known = identity_without_session(received, refusal, entry.cause_packet_id)
            self._before_session[received.packet.packet_id] = known

    def _take_hop(self, hop: RecordedHop) -> None:
        """Replay what caused a hop: receipts, a verification's result, the stream's confirm."""
        session, contract, now = self.session, self._contract, self._now
        if session is None or contract is None or now is None:
            differ(hop, "packet_events", hop.events, "nothing before START")
        if is_substrate_confirm(hop):
            advanced = confirm_substrate(session, hop.packet_id, now, contract, self._batch.decayed())
        else:
            receipts = verification_of(hop, self._session_id) or receipts_of(hop, self._session_id)
            advanced = advance(session, ReceiptsInput(receipts, now, self._batch.decayed()), contract)
        before = self._batch.position
        self._follow(advanced, hop.packet_id)
        if self._batch.position == before:
            differ(hop, "packet_events", f"{hop.from_state} to {hop.to_state} by {list(hop.events)}", NOTHING)

    def _follow(self, advanced: Advanced, cause: UUID) -> None:
        """Check everything that one input caused, in the order in which the orchestrator logs it."""
        effects = advanced.effects
        for hop in effects.hops:
            self._expect_hop(hop)
        for transition in effects.transitions:
            self._expect_transition(transition)
        for packet in advanced.emissions:
            # A timer or a reply that was sent before is a repeat: it is sent again, and not logged again.
            if advanced.session.identity(packet.packet_id) is None:
                self._take_packet(self._next_packet(packet), packet)
        for item in effects.resumed:
            self._release(advanced.session, item, cause, is_last=item is effects.resumed[-1])
        for final in effects.final_verdicts:
            self._account_for(advanced.session, final)

    def _account_for(self, session: Session, final: FinalVerdict) -> None:
        """Check blocks and recoveries of protocols: each must follow from its evidence and match its record."""
        while (entry := self._batch.decay_of(final)) is not None:
            contract = self._contract_for(entry)
            decision = read_decision(entry.facts["decay"])
            if not decision.is_justified(contract.effectiveness):
                differ(entry, "agent_packets.facts.decay", decision.record, "a decision that follows from its evidence")
            packet = decay_packet(session, decision, final.packet, entry.judged_at, contract)
            self._take_packet(self._next_packet(packet), packet)

    def _release(self, session: Session, item: HeldPacket, cause: UUID, *, is_last: bool) -> None:
        """Judge a packet released by RESUME. Held again, for its barrier, it leaves no entry."""
        contract, now = self._contract, self._now
        assert contract is not None and now is not None
        packet = item.received.packet
        entry = self._batch.current
        record: Mapping[str, Any] | None = None
        if isinstance(entry, RecordedHop) and entry.packet_id == packet.packet_id:
            record = (entry.metadata or {}).get("facts")
        facts = Facts(now=now) if record is None else recorded_facts(item.received, dict(record))
        verdict = judge_held(packet, session, facts, contract)
        advanced = advance(session, ReleaseInput(item, verdict, cause, now, is_last, self._batch.decayed()), contract)
        self._follow(advanced, cause)

    def _expect_hop(self, hop: Hop) -> None:
        wanted = f"{hop.from_state} to {hop.to_state} of {hop.packet_id} for {hop.recipient!r}"
        entry = self._batch.next(RecordedHop, wanted)
        for name in ("packet_id", "recipient", "attempt", "from_state", "to_state", "actor"):
            compare(entry, name, getattr(entry, name), getattr(hop, name))
        compare(entry, "events", list(entry.events), hop.events)
        compare(entry, "occurred_at", list(entry.occurred_at), hop.occurred_at)
        compare(entry, "metadata", entry.metadata, self._metadata_of(hop, entry))
        self.hops += 1
        self._note_ruling(entry)

    def _metadata_of(self, hop: Hop, entry: RecordedHop) -> Any:
        """Return the metadata that the entry must have: in an older log without the time of the receipts."""
        told = hop.metadata or {}
        if JUDGED_AT in told:
            self._knows_stall = JUDGED_AT in (entry.metadata or {})
            if not self._knows_stall:
                return as_json({name: value for name, value in told.items() if name != JUDGED_AT} or None)
        return as_json(hop.metadata)

    def _note_ruling(self, hop: RecordedHop) -> None:
        record = (hop.metadata or {}).get("facts")
        if self._what_if is None or record is None:
            return
        received = self._held.pop(hop.packet_id, None)
        if received is not None:
            self._what_if.note_ruling(hop, received, record)

    def _expect_transition(self, transition: Transition) -> None:
        entry = self._batch.next(RecordedTransition, f"{transition.event} to {transition.to_state}")
        for name in ("event", "from_state", "to_state", "round", "generation", "step", "cause"):
            compare(entry, name, getattr(entry, name), getattr(transition, name))
        compare(entry, "facts", dict(entry.facts), as_json(transition.facts))
        self.transitions += 1
        if self._what_if is not None:
            self._what_if.note_transition(entry)

    def _next_packet(self, expected: Packet | None) -> RecordedPacket:
        wanted = "a packet" if expected is None else f"{expected.packet_type.value} {expected.packet_id}"
        return self._batch.next(RecordedPacket, wanted)

    def _contract_for(self, entry: RecordedPacket) -> Contract:
        if self._contract is None or self._contract.hash != entry.contract_hash:
            contract = self._contract_of(entry.contract_hash)
            if contract is None:
                message = f"no file has contract {entry.contract_hash.hex()}: name its file with --contract"
                raise ReplayImpossible(entry.shard, entry.seq, message)
            self._contract = contract
        return self._contract
