"""Judge one input after the other: facts, verdict, advance, and what follows. No I/O: sessions are in memory already.

The story of a packet: `take` distinguishes inputs, `judge` finds the facts, `Verdicts.decide` asks `admit` for the
verdict, logs it and advances the session, `Following.apply` logs and sends what follows, and `_finish` judges the
orchestrator's own packets that follow, before the next input.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from apc_bus import headers
from apc_bus.port import Message
from apc_contracts.admission.admit import judge_held
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry_change import AnyChange, HostChanged, HostPresence, encode_registry_change
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import Packet
from apc_contracts.session.advance import advance, confirm_substrate
from apc_contracts.session.knowledge import decay_packet
from apc_contracts.session.lifecycle import confirm_all, confirm_delivery
from apc_contracts.session.movement import Denial, FinalVerdict, ReceiptsInput, ReleaseInput
from apc_contracts.session.session import EFFECT_ENTRIES, Session
from apc_contracts.wire.parsing import ReceivedPacket, payload_hash, seal
from apc_contracts.wire.receipts import Receipt, encode_receipt
from apc_log.batch import RegistryEntry
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.judging.deliveries import (
    DecayNotice,
    DeliveryRouting,
    Following,
    OwnPacket,
    ProtocolVerdict,
    Release,
)
from apc_orchestrator.judging.inputs import DeadInput, Input, ReceiptGroup, is_authentic, why_not_authentic
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.judging.refusals import Answers, Quarantine, dead_input_refusal
from apc_orchestrator.judging.verdicts import FactFinder, Repeats, Verdicts, signature_of, uuid_of
from apc_orchestrator.telemetry import note_verdict

# Inputs that are no packets: unreadable bodies, dead-lettered inputs, inputs that stopped an orchestrator.


class Unreadable:
    """Records such inputs with their bytes, and answers them when the broker knows who sent them."""

    def __init__(self, quarantine: Quarantine, answers: Answers, own_user: str) -> None:
        self._quarantine = quarantine
        self._answers = answers
        self._own_user = own_user

    def refuse(self, batch: Batch, message: Message, refused: PacketRefused) -> None:
        """Record a body that is no packet, and answer it."""
        message_id, user_id = uuid_of(message.message_id), message.user_id
        is_kept = self._quarantine.record(
            batch, "unreadable", str(refused), message.body, code=refused.code, packet_id=message_id, user_id=user_id
        )
        self._record_properties(batch, message, "unreadable", str(refused))
        if is_kept and message_id is not None:
            refusal = Refusal(refused.code, "parse", refused.path, refused.message)
            self._answers.unreadable(batch, message_id, refusal, message.user_id)

    def refuse_dead(self, batch: Batch, found: DeadInput, message: Message) -> None:
        """Record an input that died before it could be judged, and answer it."""
        if message.user_id != self._own_user:
            reason = f"{message.type} by {message.user_id}: only the orchestrator reports dead inputs"
            self._quarantine.record(batch, "security", reason, message.body, user_id=message.user_id)
            return
        message_id = uuid_of(found.message_id)
        refusal = dead_input_refusal(found.queue, found.reason)
        is_kept = self._quarantine.record(
            batch,
            "dead_input",
            refusal.message,
            message.body,
            code=refusal.code,
            packet_id=message_id,
            user_id=found.user_id,
        )
        self._record_riding(batch, message, "dead_input", refusal.message, found.user_id)
        if is_kept and message_id is not None:
            self._answers.unreadable(batch, message_id, refusal, found.user_id)

    def set_aside(self, batch: Batch, message: Message, properties: bytes | None = None) -> None:
        """Record an input that ended the orchestrator each time it was alone there. It is never judged.

        It draws on no quota: the defect is the orchestrator's.
        """
        reason = "the gate failed on this input; it is kept so that the gate can be fixed"
        if properties is None:
            unread = message.headers.get(headers.UNREADABLE)
            properties = unread if isinstance(unread, bytes) else None
        unjudged = [(reason, message.body)]
        if properties is not None:
            unjudged.append((f"{reason} [its AMQP properties]", properties))
        riding = message.headers.get(headers.RECEIPTS)
        if isinstance(riding, str):
            unjudged.append((reason, riding.encode()))
        for why, raw in unjudged:
            self._quarantine.record(batch, "unjudgeable", why, raw, user_id=message.user_id, is_always_kept=True)

    def _record_riding(self, batch: Batch, message: Message, kind: str, reason: str, user_id: str | None) -> None:
        """Record the receipts that rode on such an input: nothing else keeps them."""
        riding = message.headers.get(headers.RECEIPTS)
        if isinstance(riding, str):
            self._quarantine.record(batch, kind, reason, riding.encode(), user_id=user_id)

    def _record_properties(self, batch: Batch, message: Message, kind: str, reason: str) -> None:
        """Record the AMQP properties that could not be read: receipts may have ridden in them."""
        properties = message.headers.get(headers.UNREADABLE)
        if isinstance(properties, bytes):
            self._quarantine.record(batch, kind, f"{reason} [its AMQP properties]", properties, user_id=message.user_id)


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
        repeats = Repeats(memory, self._quarantine, self._answers, self._routing)
        self._unreadable = Unreadable(self._quarantine, self._answers, memory.lease.user)
        self._following = Following(self._answers, self._routing)
        self._verdicts = Verdicts(memory, self._quarantine, self._answers, repeats, self._following)

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

    def set_aside(self, batch: Batch, message: Message, properties: bytes | None = None) -> None:
        """Record an input that ended the orchestrator before, without judging it."""
        self._unreadable.set_aside(batch, message, properties)

    def judge(self, batch: Batch, received: ReceivedPacket, message: Message) -> None:
        """Judge a packet from apc.ingress, or an INTRA_AGENT packet from apc.receipts."""
        facts = self._facts.of_message(received, message, batch.now)
        asks = message.headers.get(headers.ASKS_VERDICT) is True
        verdict = self._verdicts.decide(batch, received, facts, signature_of(message), asks=asks)
        if verdict.refusal is None:
            self._memory.signs.note(received.packet.sender.agent_id, batch.now)
        self._finish(batch)
        note_verdict(batch, verdict)

    def judge_own(self, batch: Batch, packet: Packet) -> None:
        """Judge a packet of the orchestrator: sealed, judged and logged like any other."""
        self._judge_own(batch, packet)
        self._finish(batch)

    def _take_group(self, batch: Batch, group: ReceiptGroup, message: Message) -> None:
        """Take receipts of one delivery: from its recipient's broker user, or of a kind that the orchestrator sends."""
        first, memory = group[0], self._memory
        session = self._sessions.get(first.session_id)
        known = tuple(
            receipt for receipt in group if is_authentic(receipt, message.user_id, memory.registry, memory.lease.user)
        )
        if len(known) < len(group) or session is None:
            reason = "no such session" if session is None else why_not_authentic(first, message.user_id)
            body = b"[" + b",".join(encode_receipt(receipt) for receipt in group) + b"]"
            self._quarantine_receipts(batch, first, reason, body, message.user_id)
        if session is not None and known:
            recipient = memory.registry.by_id.get(first.recipient)
            if recipient is not None and recipient.speaks_as(message.user_id):
                memory.signs.note(first.recipient, batch.now)
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
        for receipt in advanced.effects.surplus:
            reason = f"{receipt.recipient} has {EFFECT_ENTRIES} entries about effects in this session: no more are kept"
            self._quarantine_receipts(batch, receipt, reason, encode_receipt(receipt), user_id)
        self._following.apply(batch, session, advanced, receipts[0].packet_id)
        self._finish(batch)

    def _quarantine_receipts(
        self, batch: Batch, receipt: Receipt, reason: str, body: bytes, user_id: str | None
    ) -> None:
        session_id, packet_id = receipt.session_id, receipt.packet_id
        self._quarantine.record(
            batch, "security", reason, body, session_id=session_id, packet_id=packet_id, user_id=user_id
        )

    def _change_registry(self, batch: Batch, change: AnyChange, message: Message) -> None:
        """Apply a change by the operator's broker user once, and log it."""
        body, operator = message.body, self._memory.operator
        trusted = (operator, self._memory.lease.user)
        if message.user_id not in trusted:
            reason = f"a registry change by {message.user_id}, who is not the operator {operator}"
            self._quarantine.record(batch, "security", reason, body, user_id=message.user_id)
        elif (objection := self._memory.registry.objection(change, trusted)) is not None:
            self._quarantine.record(batch, "refused", objection, body, user_id=message.user_id)
        elif self._memory.registry.apply(change):
            batch.entries.append(RegistryEntry(change.change_id, change.subject, body))

    def note_host(self, batch: Batch, host: str, presence: HostPresence) -> None:
        """Log that a host appeared, or is gone. The gate knows it from the broker: nobody can send it."""
        change = HostChanged(change_id=new_packet_id(), host=host, presence=presence)
        batch.entries.append(RegistryEntry(change.change_id, change.subject, encode_registry_change(change)))

    # Verdicts

    def _judge_own(self, batch: Batch, packet: Packet, decay: Mapping[str, Any] | None = None) -> None:
        """Judge a packet of the orchestrator; `decay` records what a DECISION says about a protocol."""
        sealed = seal(packet)
        received = ReceivedPacket(packet, sealed.body, sealed.packet_hash, bytes.fromhex(payload_hash(packet.payload)))
        self._verdicts.decide(batch, received, self._facts.of_own(received, batch.now, decay), None)

    # What follows

    def _finish(self, batch: Batch) -> None:
        """Do what the last input left to be done, until nothing is left."""
        while (item := self._following.queue.next()) is not None:
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
        self._following.apply(batch, item.session, advance(item.session, given, contract), item.cause)

    def _count_protocol(self, batch: Batch, session: Session, final: FinalVerdict) -> None:
        """Count a final verdict for its protocol; a block or a recovery is logged in the session that caused it."""
        decisions = self._memory.protocols.note(final.packet, final.refusal_code, batch.now)
        self._following.queue.add(DecayNotice(session, decision, final.packet) for decision in decisions)

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
        self._following.apply(batch, session, advanced, packet_id)
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
