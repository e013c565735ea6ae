"""Judge one input after the other: facts, verdict, advance, and what follows. No I/O: sessions are in memory already.

The story of a packet, from top to bottom: `take` tells inputs apart, `judge` finds the facts, `_decide` asks `admit`
for the verdict, `_record` logs it and advances the session, `_apply` logs and sends what follows, and `_finish` judges
the orchestrator's own packets that follow, before the next input.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any
from uuid import UUID

from apc_bus.port import Message
from apc_contracts.admission import admit, judge_held, note_place
from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.session import (
    Advanced,
    Denial,
    FinalVerdict,
    PacketInput,
    ReceiptsInput,
    ReleaseInput,
    Session,
    advance,
    confirm_substrate,
    decay_packet,
    ends_session,
    hops_without_session,
    identity_without_session,
    open_session,
    resolve_recipients,
)
from apc_contracts.session.delivery.repeats import confirm_all, confirm_delivery
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PRESENCE_SESSION
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import Receipt, encode_receipt
from apc_contracts.wire.sealing import payload_hash, seal
from apc_log.batch import RegistryEntry
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.judging.answers import Answers
from apc_orchestrator.judging.entries import coordination_entry, hop_entry, lineage_entry, packet_entry
from apc_orchestrator.judging.fact_finding import FactFinder, signature_of
from apc_orchestrator.judging.inputs import DeadInput, Input, ReceiptGroup, is_authentic
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.judging.quarantine import Quarantine
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.judging.repeats import Repeats
from apc_orchestrator.judging.routing import DeliveryRouting
from apc_orchestrator.judging.unreadable import Unreadable
from apc_orchestrator.judging.work import DecayNotice, OwnPacket, ProtocolVerdict, Release, Work, WorkQueue
from apc_orchestrator.tracing import note_verdict


class Judge:
    """Judges the inputs of one shard during one lease."""

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._contract_of = memory.contract_of
        self._sessions = memory.sessions
        self._quarantine = Quarantine(memory.contract.limits.refused)
        self._facts = FactFinder(memory)
        self._answers = Answers(memory)
        self._routing = DeliveryRouting(memory)
        self._repeats = Repeats(memory, self._quarantine, self._answers, self._routing)
        self._unreadable = Unreadable(self._quarantine, self._answers, memory.lease.user)
        self._work = WorkQueue()
        self._id_codes = frozenset(_codes_without_id(memory.contract))

    # Inputs

    def take(self, batch: Batch, found: Input, message: Message) -> None:
        """Judge one input of the gate queue, and everything that follows from it."""
        if isinstance(found, ReceivedPacket):
            self.judge(batch, found, message)
        elif isinstance(found, PacketRefused):
            self._unreadable.refuse(batch, message, found)
        elif isinstance(found, tuple):
            for group in found:
                self._take_group(batch, group, message)
        elif isinstance(found, DeadInput):
            self._unreadable.refuse_dead(batch, found, message)
        else:
            self._change_registry(batch, found, message)

    def set_aside(self, batch: Batch, message: Message) -> None:
        """Record an input that stopped the gate before, without judging it."""
        self._unreadable.set_aside(batch, message)

    def judge(self, batch: Batch, received: ReceivedPacket, message: Message) -> None:
        """Judge a packet from apc.ingress, or an INTRA_AGENT packet from apc.receipts."""
        facts = self._facts.of_message(received, message, batch.now)
        verdict = self._decide(batch, received, facts, signature_of(message))
        self._finish(batch)
        note_verdict(batch, verdict)

    def judge_own(self, batch: Batch, packet: Packet) -> None:
        """Judge a packet of the orchestrator: sealed, judged and logged like any other."""
        self._judge_own(batch, packet)
        self._finish(batch)

    def _take_group(self, batch: Batch, group: ReceiptGroup, message: Message) -> None:
        """Take receipts of one delivery: from its recipient's broker user, or of the kinds that only a gate sends."""
        first, memory = group[0], self._memory
        session = self._sessions.get(first.session_id)
        known = tuple(
            receipt for receipt in group if is_authentic(receipt, message.user_id, memory.registry, memory.lease.user)
        )
        if len(known) < len(group) or session is None:
            reason = "no such session" if session is None else f"{first.kind} not from {first.recipient}"
            body = b"[" + b",".join(encode_receipt(receipt) for receipt in group) + b"]"
            self._quarantine_receipts(batch, first, reason, body, message.user_id)
        if session is not None and known:
            self.take_receipts(batch, session, known, message.user_id)

    def take_receipts(
        self, batch: Batch, session: Session, receipts: Sequence[Receipt], user_id: str | None = None
    ) -> None:
        """Advance a session by authenticated receipts of one (packet, recipient, attempt)."""
        given = ReceiptsInput(receipts, batch.now, self._memory.protocols.decayed(batch.now))
        advanced = advance(session, given, self._contract_of(session))
        for receipt in advanced.effects.misdirected:
            reason = f"{receipt.kind} of a packet that was not delivered to {receipt.recipient}"
            self._quarantine_receipts(batch, receipt, reason, encode_receipt(receipt), user_id)
        self._apply(batch, session, advanced, receipts[0].packet_id)
        self._finish(batch)

    def _quarantine_receipts(
        self, batch: Batch, receipt: Receipt, reason: str, body: bytes, user_id: str | None
    ) -> None:
        session_id, packet_id = receipt.session_id, receipt.packet_id
        self._quarantine.record(
            batch, "security", reason, body, session_id=session_id, packet_id=packet_id, user_id=user_id
        )

    def _change_registry(self, batch: Batch, change: AgentAdded | AgentRevoked, message: Message) -> None:
        """Apply a change by the operator's broker user once, and log it."""
        body, operator = message.body, self._memory.operator
        if message.user_id not in (operator, self._memory.lease.user):
            reason = f"a registry change by {message.user_id}, who is not the operator {operator}"
            self._quarantine.record(batch, "security", reason, body, user_id=message.user_id)
        elif self._memory.registry.apply(change):
            batch.entries.append(RegistryEntry(change.change_id, change.agent_id, body))

    # Verdicts

    def _judge_own(self, batch: Batch, packet: Packet, decay: Mapping[str, Any] | None = None) -> None:
        """Judge a packet of the orchestrator; `decay` records what a DECISION says about a protocol."""
        sealed = seal(packet)
        received = ReceivedPacket(packet, sealed.body, sealed.packet_hash, bytes.fromhex(payload_hash(packet.payload)))
        self._decide(batch, received, self._facts.of_own(received, batch.now, decay), None)

    def _decide(self, batch: Batch, received: ReceivedPacket, facts: Facts, signature: str | None) -> Verdict:
        packet = received.packet
        session = self._sessions.get(packet.trace.session_id)
        contract = self._contract_of(session) if session is not None else self._memory.contract_for(packet)
        began = perf_counter()
        verdict = admit(packet, session, facts, contract)
        batch.admit_seconds.append(perf_counter() - began)
        refusal, repeats = verdict.refusal, self._repeats
        known = (
            None if session is not None else self._sessions.refused_packet(packet.trace.session_id, packet.packet_id)
        )
        if known is not None and (refusal is None or refusal.code not in self._id_codes):
            repeats.repeat_unknown(batch, received, known, facts)
        elif verdict.kind is VerdictKind.REPEAT:
            repeats.repeat(batch, received, session, facts)
        elif verdict.kind is VerdictKind.RERUN:
            repeats.record_conflict(batch, received, facts, "rerun", None, "another payload for the same cause")
        elif refusal is not None and (refusal.code in self._id_codes or self._is_crowded(session, refusal)):
            if repeats.record_conflict(batch, received, facts, "refused", refusal.code, refusal.reason):
                self._answers.refusal(batch, received, refusal, facts.user_id)
        else:
            self._record(batch, received, verdict, facts, signature, contract)
        return verdict

    def _is_crowded(self, session: Session | None, refusal: Refusal) -> bool:
        """Return whether the session remembers so many refused packets that another one takes no id in it."""
        if session is None or session.refused_items < self._contract_of(session).limits.refused_items:
            return False
        return not ends_session(session, refusal)

    def _record(
        self,
        batch: Batch,
        received: ReceivedPacket,
        verdict: Verdict,
        facts: Facts,
        signature: str | None,
        contract: Contract,
    ) -> None:
        """Log a verdict that takes an id: the packet's row first, then everything that it caused."""
        packet, refusal = received.packet, verdict.refusal
        if refusal is not None and facts.is_received:
            if not self._quarantine.has_room(batch, received.body, facts.user_id):
                return
        if contract is not self._memory.contract and self._sessions.get(packet.trace.session_id) is None:
            # A START, refused or not: the log holds every contract that its entries name.
            batch.contracts.add(contract.body)
        session = self._session_for(batch, packet, verdict, contract)
        recipients = _recipients(packet, session, self._memory.registry)
        note_place(verdict.facts, packet, session)
        advanced = None
        if session is not None:
            decayed = self._memory.protocols.decayed(batch.now)
            given = PacketInput(received, verdict, recipients, facts.proven_cause, batch.now, decayed)
            advanced = advance(session, given, contract)
        row = packet_entry(received, verdict, recipients, session, contract.hash, facts, signature)
        batch.entries.append(row)
        lineage = lineage_entry(packet)
        if lineage is not None:
            batch.entries.append(lineage)
        if refusal is not None:
            self._answers.refusal(batch, received, refusal, facts.user_id)
        if session is None or advanced is None:
            self._record_without_session(batch, received, verdict, facts)
        else:
            self._apply(batch, session, advanced, packet.packet_id)

    def _session_for(self, batch: Batch, packet: Packet, verdict: Verdict, contract: Contract) -> Session | None:
        """Return the packet's session. An admitted packet draws its sender's quota, and a START opens its session."""
        sender, session_id = packet.sender, packet.trace.session_id
        session = self._sessions.get(session_id)
        if verdict.refusal is not None:
            return session
        if packet.packet_type not in CONTROL_TYPES and sender.agent_id != ORCHESTRATOR:
            self._memory.quotas.draw(sender.agent_id, sender.role, batch.now)
        if session is None and session_id != PRESENCE_SESSION:
            session = open_session(packet, batch.now, contract, verdict.facts.get("places"))
            # A packet refused earlier under this name keeps its id and its refusal.
            for packet_id, identity in self._sessions.refused_packets(session_id).items():
                session.remember(packet_id, identity)
            self._sessions.add(session)
        return session

    def _record_without_session(self, batch: Batch, received: ReceivedPacket, verdict: Verdict, facts: Facts) -> None:
        """Log the hops of a presence signal, or of a packet for a session that does not exist."""
        packet, refusal = received.packet, verdict.refusal
        session_id = packet.trace.session_id
        hops = hops_without_session(packet, refusal, batch.now)
        batch.entries.extend(hop_entry(session_id, hop) for hop in hops)
        if refusal is not None and session_id != PRESENCE_SESSION:
            known = identity_without_session(received, refusal, facts.proven_cause)
            self._sessions.remember_refused(session_id, packet.packet_id, known)

    # What follows

    def _apply(self, batch: Batch, session: Session, advanced: Advanced, cause: UUID) -> None:
        """Log and send what follows from an input; queue what has to be judged because of it."""
        effects, session_id = advanced.effects, session.session_id
        batch.touched[session_id] = session
        batch.entries.extend(hop_entry(session_id, hop) for hop in effects.hops)
        batch.entries.extend(coordination_entry(session_id, row) for row in effects.transitions)
        batch.verifications.extend(effects.verifications)
        self._routing.count(effects)
        for route in (*effects.routes, *effects.due):
            self._routing.deliver(batch, session, route)
        for denial in effects.denials:
            self._answers.denial(batch, denial)
        following: list[Work] = [OwnPacket(packet) for packet in advanced.emissions]
        for held in effects.resumed:
            following.append(Release(session, held, cause, is_last=held is effects.resumed[-1]))
        following += [ProtocolVerdict(session, final) for final in effects.final_verdicts]
        if following:
            self._work.add(following)

    def _finish(self, batch: Batch) -> None:
        """Do what the last input left to be done, until nothing is left."""
        while (item := self._work.next()) is not None:
            if isinstance(item, OwnPacket):
                self._judge_own(batch, item.packet)
            elif isinstance(item, Release):
                self._release(batch, item)
            elif isinstance(item, ProtocolVerdict):
                self._count_protocol(batch, item.session, item.final)
            else:
                packet = decay_packet(
                    item.session, item.decision, item.cause, batch.now, self._contract_of(item.session)
                )
                self._judge_own(batch, packet, item.decision.record)

    def _release(self, batch: Batch, item: Release) -> None:
        """Judge a packet that was held by a pause as if it arrived now."""
        facts = self._facts.of_held(item.held, batch.now)
        contract = self._contract_of(item.session)
        verdict = judge_held(item.held.received.packet, item.session, facts, contract)
        given = ReleaseInput(item.held, verdict, item.cause, batch.now, item.is_last, facts.decayed_protocols)
        self._apply(batch, item.session, advance(item.session, given, contract), item.cause)

    def _count_protocol(self, batch: Batch, session: Session, final: FinalVerdict) -> None:
        """Count a final verdict for its protocol; a block or a recovery is logged in the session that caused it."""
        decisions = self._memory.protocols.note(final.packet, final.refusal_code, batch.now)
        self._work.add(DecayNotice(session, decision, final.packet) for decision in decisions)

    # Deliveries that were sent, and sessions that were loaded

    def confirm_delivery(self, outgoing: Outgoing) -> None:
        """Note that the broker has confirmed a delivery: a repeat of its packet is no longer delivered."""
        session = self._sessions.get(outgoing.session_id)
        opened = None if session is None or outgoing.packet_id is None else session.open.get(outgoing.packet_id)
        if opened is not None:
            confirm_delivery(opened, outgoing.recipient, outgoing.attempt)

    def confirm_substrate(self, batch: Batch, session: Session, packet_id: UUID) -> None:
        """Advance a session by the substrate stream's confirm of a packet."""
        decayed = self._memory.protocols.decayed(batch.now)
        advanced = confirm_substrate(session, packet_id, batch.now, self._contract_of(session), decayed)
        self._apply(batch, session, advanced, packet_id)
        self._finish(batch)

    def adopt(self, session: Session) -> None:
        """Adopt a loaded session. Its open deliveries count from now on, unless they never stopped counting."""
        if self._sessions.was_evicted(session.session_id):
            confirm_all(session)
        else:
            self._routing.count_open(session)
        self._sessions.add(session)

    def redeliver(self, batch: Batch, session: Session) -> None:
        """Deliver again everything of a session that is open, its own packets included (a new lease)."""
        self._routing.redeliver_all(batch, session)

    def answer_denial(self, batch: Batch, denial: Denial) -> None:
        """Answer a packet that was held and then refused."""
        self._answers.denial(batch, denial)


def _codes_without_id(contract: Contract) -> list[str]:
    """Return the refusals that take no id: up to and including BAD_SIGNATURE, and conflicts."""
    order = list(contract.refusals.order)
    return [*order[: order.index(contract.refusals.last_without_id) + 1], "DUPLICATE_CONFLICT"]


def _recipients(packet: Packet, session: Session | None, registry: Registry) -> tuple[str, ...]:
    if session is None:
        return tuple(recipient.agent_id for recipient in packet.recipients)
    return resolve_recipients(packet, session, registry.by_id)
