"""One packet after another: facts, verdict, advance, and what follows. No I/O: its session is in memory by now."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any
from uuid import UUID

from apc_bus.log_batch import RegistryEntry
from apc_bus.port import Message
from apc_contracts.admission import admit, judge_held, note_place
from apc_contracts.contract import Contract
from apc_contracts.errors import PacketRefused
from apc_contracts.facts import Facts
from apc_contracts.outstanding import Outstanding
from apc_contracts.packet import Packet
from apc_contracts.parsing import ReceivedPacket
from apc_contracts.protocol_ledger import ProtocolLedger
from apc_contracts.quotas import Quotas
from apc_contracts.receipts import Receipt
from apc_contracts.registry_change import AgentAdded, AgentRevoked
from apc_contracts.sealing import payload_hash, seal
from apc_contracts.session import (
    Advanced,
    Denial,
    Effects,
    FinalVerdict,
    HeldPacket,
    Identity,
    OpenPacket,
    PacketInput,
    Progress,
    ReceiptsInput,
    ReleaseInput,
    Route,
    Session,
    advance,
    confirm_substrate,
    decay_packet,
    hops_without_session,
    open_session,
    resolve_recipients,
    stranger,
)
from apc_contracts.session.repeats import confirm_all, confirm_delivery, deliveries_to_repeat
from apc_contracts.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PRESENCE_SESSION
from apc_orchestrator import publications
from apc_orchestrator.answers import Answers
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.entries import (
    coordination_entry,
    hop_entry,
    lineage_entry,
    packet_entry,
)
from apc_orchestrator.fact_finding import FactFinder, signature_of, uuid_of
from apc_orchestrator.inbox import DeadInput, Input, ReceiptGroup, is_authentic
from apc_orchestrator.publications import Tenure
from apc_orchestrator.quarantine import Quarantine, dead_input_refusal
from apc_orchestrator.registry import Registry
from apc_orchestrator.sessions import Sessions
from apc_orchestrator.tracing import Traces, note_verdict


class Judge:
    """Judges for one shard during one tenure. `outstanding` counts open deliveries per recipient over all sessions."""

    def __init__(
        self,
        contract: Contract,
        registry: Registry,
        sessions: Sessions,
        tenure: Tenure,
        shards: int,
        operator: str,
        protocols: ProtocolLedger,
        traces: Traces,
    ) -> None:
        self._contract = contract
        self._registry = registry
        self._sessions = sessions
        self._tenure = tenure
        self._operator = operator
        self._protocols = protocols
        self._traces = traces
        self._id_codes = frozenset(self._codes_without_id(contract))
        self.outstanding = Outstanding()
        self._quotas = Quotas(contract.limits.quota)
        self._quarantine = Quarantine(contract.limits.refused)
        self._repeat_interval = timedelta(milliseconds=contract.limits.retry_after_ms)
        self._facts = FactFinder(
            contract, registry, sessions, tenure, shards, self.outstanding, protocols, self._quotas
        )
        self._answers = Answers(contract, registry, sessions, tenure, traces)

    def adopt(self, session: Session) -> None:
        """A session that was loaded: its open deliveries count from now on, if they did not before an eviction."""
        was_evicted = self._sessions.was_evicted(session.session_id)
        self._sessions.add(session)
        if was_evicted:
            confirm_all(session)
            return
        for opened in session.open.values():
            for recipient, progress in opened.recipients.items():
                if progress.is_open:
                    self.outstanding.begin(opened.packet.sender.agent_id, recipient)

    def take(self, batch: Batch, found: Input, message: Message) -> None:
        """One input of the gate queue."""
        if isinstance(found, ReceivedPacket):
            self.judge(batch, found, message)
        elif isinstance(found, PacketRefused):
            self.refuse_unreadable(batch, message, found)
        elif isinstance(found, tuple):
            for group in found:
                self._take_group(batch, group, message)
        elif isinstance(found, DeadInput):
            self._take_dead(batch, found, message)
        else:
            self._change_registry(batch, found, message)

    def judge(self, batch: Batch, received: ReceivedPacket, message: Message) -> None:
        """A packet from apc.ingress, or an INTRA_AGENT packet from apc.receipts."""
        facts = self._facts.of_message(received, message, batch.now)
        note_verdict(batch, self._decide(batch, received, facts, signature_of(message)))

    def judge_own(self, batch: Batch, packet: Packet[Any], decay: Mapping[str, Any] | None = None) -> None:
        """A packet of the orchestrator: sealed, judged and logged like any other.

        `decay` is the record of what a DECISION says about a protocol.
        """
        sealed = seal(packet)
        received = ReceivedPacket(packet, sealed.body, sealed.packet_hash, bytes.fromhex(payload_hash(packet.payload)))
        facts = self._facts.of_own(received, batch.now, decay)
        self._decide(batch, received, facts, None)

    def refuse_unreadable(self, batch: Batch, message: Message, refused: PacketRefused) -> None:
        """A body that is no packet: quarantined with its bytes; answered when the broker knows who sent it."""
        message_id, user_id = uuid_of(message.message_id), message.user_id
        is_kept = self._quarantine.record(
            batch, "unreadable", str(refused), message.body, code=refused.code, packet_id=message_id, user_id=user_id
        )
        if is_kept and message_id is not None:
            refusal = Refusal(refused.code, "parse", refused.path, refused.message)
            self._answers.unreadable(batch, message_id, refusal, message.user_id)

    def set_aside(self, batch: Batch, message: Message) -> None:
        """An input that stopped the gate before: kept with its bytes, and never judged."""
        reason = "the gate failed on this input; it is kept for whoever mends the gate"
        self._quarantine.record(batch, "unjudgeable", reason, message.body, user_id=message.user_id)

    def _take_dead(self, batch: Batch, found: DeadInput, message: Message) -> None:
        """An input that died before it could be judged: kept with its bytes, and its sender is told."""
        if message.user_id != self._tenure.user:
            reason = f"{message.type} by {message.user_id}: only the orchestrator tells of dead inputs"
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
        if is_kept and message_id is not None:
            self._answers.unreadable(batch, message_id, refusal, found.user_id)

    def _take_group(self, batch: Batch, group: ReceiptGroup, message: Message) -> None:
        """Receipts of one delivery: from its recipient's broker user, or of the kinds that only the gate sends."""
        first = group[0]
        session = self._sessions.get(first.session_id)
        known = tuple(
            receipt for receipt in group if is_authentic(receipt, message.user_id, self._registry, self._tenure.user)
        )
        if len(known) < len(group) or session is None:
            reason = "no such session" if session is None else f"{first.kind} not from {first.recipient}"
            self._quarantine.record(
                batch,
                "security",
                reason,
                b"[" + b",".join(_encoded(receipt) for receipt in group) + b"]",
                session_id=first.session_id,
                packet_id=first.packet_id,
                user_id=message.user_id,
            )
        if session is not None and known:
            self.take_receipts(batch, session, known, message.user_id)

    def _change_registry(self, batch: Batch, change: AgentAdded | AgentRevoked, message: Message) -> None:
        """A change by the operator's broker user: applied once, logged, upserted by the persister."""
        body = message.body
        if message.user_id not in (self._operator, self._tenure.user):
            reason = f"a registry change by {message.user_id}, who is not the operator {self._operator}"
            self._quarantine.record(batch, "security", reason, body, user_id=message.user_id)
        elif self._registry.apply(change):
            batch.entries.append(RegistryEntry(change.change_id, change.agent_id, body))

    def answer_denial(self, batch: Batch, denial: Denial) -> None:
        """The NACK of a packet that was held and then refused, once more."""
        self._answers.denial(batch, denial)

    def take_receipts(
        self, batch: Batch, session: Session, receipts: Sequence[Receipt], user_id: str | None = None
    ) -> None:
        """Authenticated receipts of one (packet, recipient, attempt)."""
        given = ReceiptsInput(receipts, batch.now, self._protocols.decayed(batch.now))
        advanced = advance(session, given, self._contract)
        for receipt in advanced.effects.strangers:
            self._quarantine.record(
                batch,
                "security",
                f"{receipt.kind} of a packet that was not delivered to {receipt.recipient}",
                _encoded(receipt),
                session_id=session.session_id,
                packet_id=receipt.packet_id,
                user_id=user_id,
            )
        self._apply(batch, session, advanced, receipts[0].packet_id)

    def confirm_delivery(self, outgoing: Outgoing) -> None:
        """The broker has confirmed a delivery: a repeat of its packet is not delivered any more."""
        session = self._sessions.get(outgoing.session_id)
        opened = None if session is None or outgoing.packet_id is None else session.open.get(outgoing.packet_id)
        if opened is not None:
            confirm_delivery(opened, outgoing.recipient, outgoing.attempt)

    def confirm_substrate(self, batch: Batch, session: Session, packet_id: UUID) -> None:
        """The substrate stream has confirmed a packet."""
        decayed = self._protocols.decayed(batch.now)
        self._apply(
            batch, session, confirm_substrate(session, packet_id, batch.now, self._contract, decayed), packet_id
        )

    def redeliver(self, batch: Batch, session: Session) -> None:
        """Everything of a session that is still on its way, its own packets included (a shard was taken)."""
        for opened in session.open.values():
            for recipient, progress in opened.recipients.items():
                if progress.is_open:
                    self._deliver_again(batch, session, opened, recipient, progress)

    def _decide(self, batch: Batch, received: ReceivedPacket, facts: Facts, signature: str | None) -> Verdict:
        packet = received.packet
        session = self._sessions.get(packet.trace.session_id)
        began = perf_counter()
        verdict = admit(packet, session, facts, self._contract)
        batch.admit_seconds.append(perf_counter() - began)
        refusal = verdict.refusal
        known = None if session is not None else self._sessions.stranger(packet.trace.session_id, packet.packet_id)
        if known is not None and (refusal is None or refusal.code not in self._id_codes):
            self._repeat_stranger(batch, received, known, facts)
        elif verdict.kind is VerdictKind.REPEAT:
            self._repeat(batch, received, session, facts)
        elif verdict.kind is VerdictKind.RERUN:
            self._record_conflict(batch, received, facts, "rerun", None, "another payload for the same cause")
        elif refusal is not None and refusal.code in self._id_codes:
            if self._record_conflict(batch, received, facts, "refused", refusal.code, refusal.reason):
                self._answers.refusal(batch, received, refusal, facts.user_id)
        else:
            self._record(batch, received, verdict, session, facts, signature)
        return verdict

    def _record(
        self,
        batch: Batch,
        received: ReceivedPacket,
        verdict: Verdict,
        session: Session | None,
        facts: Facts,
        signature: str | None,
    ) -> None:
        """A verdict that takes an id: the packet's row first, then everything that it caused."""
        packet = received.packet
        is_refused = verdict.refusal is not None
        if is_refused and facts.is_received and not self._quarantine.has_room(batch, received.body, facts.user_id):
            return
        if not is_refused:
            self._draw(packet, batch.now)
        if session is None and not is_refused and packet.trace.session_id != PRESENCE_SESSION:
            session = self._open(packet, batch.now)
        recipients = self._resolve(packet, session)
        note_place(verdict.facts, packet, session)
        advanced = None
        if session is not None:
            decayed = self._protocols.decayed(batch.now)
            given = PacketInput(received, verdict, recipients, facts.proven_cause, batch.now, decayed)
            advanced = advance(session, given, self._contract)
        user_id = facts.user_id or ""
        entry = packet_entry(
            received, verdict, recipients, session, self._contract.hash, facts.proven_cause, user_id, signature
        )
        batch.entries.append(entry)
        lineage = lineage_entry(packet)
        if lineage is not None:
            batch.entries.append(lineage)
        if verdict.refusal is not None:
            self._answers.refusal(batch, received, verdict.refusal, facts.user_id)
        if session is None or advanced is None:
            self._record_without_session(batch, received, verdict.refusal, facts)
        else:
            self._apply(batch, session, advanced, packet.packet_id)

    def _draw(self, packet: Packet[Any], now: datetime) -> None:
        """An admitted packet counts against its sender's quota."""
        if packet.packet_type not in CONTROL_TYPES and packet.sender.agent_id != ORCHESTRATOR:
            self._quotas.draw(packet.sender.agent_id, packet.sender.role, now)

    def _record_without_session(
        self, batch: Batch, received: ReceivedPacket, refusal: Refusal | None, facts: Facts
    ) -> None:
        """A sign of life, or a packet for a session that does not exist."""
        packet = received.packet
        session_id = packet.trace.session_id
        hops = hops_without_session(packet, refusal, batch.now)
        batch.entries.extend(hop_entry(session_id, hop) for hop in hops)
        if refusal is not None and session_id != PRESENCE_SESSION:
            known = stranger(received, refusal, facts.proven_cause)
            self._sessions.remember_stranger(session_id, packet.packet_id, known)

    def _repeat_stranger(self, batch: Batch, received: ReceivedPacket, known: Identity, facts: Facts) -> None:
        """A packet that was refused before its session began: its recorded refusal again, or a conflict."""
        if not self._draw_repeat(batch, received.packet):
            return
        refusal = known.refusal
        if refusal is None or known.packet_hash != received.packet_hash:
            message = "another packet has this packet_id in the session and stands: send a new packet with a new id"
            refusal = Refusal("DUPLICATE_CONFLICT", "identity_is_free", "packet_id", message)
            if not self._record_conflict(batch, received, facts, "refused", refusal.code, refusal.reason):
                return
        self._answers.refusal(batch, received, refusal, facts.user_id)

    def _open(self, start: Packet[Any], now: datetime) -> Session:
        session = open_session(start, now, self._contract)
        # What was refused under this name before keeps its id and its refusal.
        session.identities.update(self._sessions.strangers(session.session_id))
        self._sessions.add(session)
        return session

    def _resolve(self, packet: Packet[Any], session: Session | None) -> tuple[str, ...]:
        if session is None:
            return tuple(recipient.agent_id for recipient in packet.recipients)
        return resolve_recipients(packet, session, self._registry.by_id)

    def _apply(self, batch: Batch, session: Session, advanced: Advanced, cause: UUID) -> None:
        """Log what happened, then do what follows; the orchestrator's own packets are judged at once."""
        effects, session_id = advanced.effects, session.session_id
        batch.touched[session_id] = session
        batch.entries.extend(hop_entry(session_id, hop) for hop in effects.hops)
        batch.entries.extend(coordination_entry(session_id, row) for row in effects.transitions)
        batch.verifications.extend(effects.verifications)
        self._count(effects)
        for route in (*effects.routes, *effects.due):
            self._deliver(batch, session, route)
        for denial in effects.denials:
            self._answers.denial(batch, denial)
        for packet in advanced.emissions:
            self.judge_own(batch, packet)
        for item in effects.resumed:
            self._release(batch, session, item, cause, is_last=item is effects.resumed[-1])
        for final in effects.final_verdicts:
            self._account_for(batch, session, final)

    def _account_for(self, batch: Batch, session: Session, final: FinalVerdict) -> None:
        """What a verdict says about a protocol; a block or a recovery is logged in the session that caused it."""
        for decision in self._protocols.note(final.packet, final.refusal_code, batch.now):
            packet = decay_packet(session, decision, final.packet, batch.now, self._contract)
            self.judge_own(batch, packet, decision.record)

    def _release(self, batch: Batch, session: Session, item: HeldPacket, cause: UUID, *, is_last: bool) -> None:
        """RESUME: judge what the pause held as if it came now."""
        facts = self._facts.of_held(item, batch.now)
        verdict = judge_held(item.received.packet, session, facts, self._contract)
        given = ReleaseInput(item, verdict, cause, batch.now, is_last, facts.decayed_protocols)
        self._apply(batch, session, advance(session, given, self._contract), cause)

    def _count(self, effects: Effects) -> None:
        outstanding = self.outstanding
        for route in effects.routes:
            for recipient in route.recipients:
                outstanding.begin(route.received.packet.sender.agent_id, recipient)
        for sender, recipient in zip(effects.ended_senders, effects.ended, strict=True):
            outstanding.end(sender, recipient)

    def _deliver(self, batch: Batch, session: Session, route: Route) -> None:
        packet, registry = route.received.packet, self._registry.by_id
        if route.not_before is not None and route.not_before > batch.now:
            self._put_off(batch, session, route, route.not_before)
            return
        trace = self._traces.of(batch, packet.packet_id)
        sender = registry.get(packet.sender.agent_id)
        message = publications.delivery(
            route.received, route.attempt, session, self._tenure, batch.number, batch.now, trace, sender
        )
        for recipient in route.recipients:
            publication = publications.addressed(message, packet, recipient, registry)
            batch.outgoing.append(Outgoing(publication, session.session_id, packet.packet_id, recipient, route.attempt))

    def _deliver_again(
        self, batch: Batch, session: Session, opened: OpenPacket, recipient: str, progress: Progress
    ) -> None:
        """The delivery that is on its way, once more; a retry that is not due yet is put off once more."""
        self._deliver(batch, session, Route(opened.received, (recipient,), progress.attempt, progress.not_before))

    def _put_off(self, batch: Batch, session: Session, route: Route, not_before: datetime) -> None:
        packet = route.received.packet
        for recipient in route.recipients:
            publication = publications.postponed(packet, recipient, route.attempt, not_before, self._tenure, batch.now)
            batch.outgoing.append(Outgoing(publication, session.session_id, packet.packet_id, recipient, route.attempt))

    def _repeat(self, batch: Batch, received: ReceivedPacket, session: Session | None, facts: Facts) -> None:
        """Never judged twice: what the first one caused and may be missing is done again, as the quota allows."""
        packet = received.packet
        if not self._draw_repeat(batch, packet):
            return
        identity = session.identity(packet.packet_id) if session is not None else None
        if session is None or identity is None:
            return
        if identity.refusal is not None:
            self._answers.refusal(batch, received, identity.refusal, facts.user_id)
        opened = session.open.get(packet.packet_id)
        if opened is None or packet.expires <= batch.now:
            return
        for recipient, progress in deliveries_to_repeat(opened, batch.now, self._repeat_interval):
            self._deliver_again(batch, session, opened, recipient, progress)

    def _draw_repeat(self, batch: Batch, packet: Packet[Any]) -> bool:
        """Whether the sender's quota holds a repeat; it is drawn."""
        batch.repeats += 1
        sender = packet.sender
        if sender.agent_id == ORCHESTRATOR:
            return True
        if self._quotas.wait_ms(sender.agent_id, sender.role, batch.now) > 0:
            return False
        self._quotas.draw(sender.agent_id, sender.role, batch.now)
        return True

    def _record_conflict(
        self,
        batch: Batch,
        received: ReceivedPacket,
        facts: Facts,
        kind: str,
        code: str | None,
        reason: str,
    ) -> bool:
        packet = received.packet
        session = self._sessions.get(packet.trace.session_id)
        identity = session.identity(packet.packet_id) if session is not None else None
        return self._quarantine.record(
            batch,
            kind,
            reason,
            received.body,
            code=code,
            session_id=packet.trace.session_id,
            packet_id=packet.packet_id,
            first_hash=identity.packet_hash if identity is not None else None,
            second_hash=received.packet_hash,
            user_id=facts.user_id,
        )

    @staticmethod
    def _codes_without_id(contract: Contract) -> list[str]:
        """Refusals up to and including BAD_SIGNATURE, and conflicts: they occupy nobody's id."""
        order = list(contract.refusals.order)
        return [*order[: order.index(contract.refusals.last_without_id) + 1], "DUPLICATE_CONFLICT"]


def _encoded(receipt: Receipt) -> bytes:
    return receipt.model_dump_json(exclude_none=True).encode()
