"""Decide about one packet: its facts, its verdict, the entries that record it, and the step of its session."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any
from uuid import UUID

from apc_bus import headers
from apc_bus.port import Message
from apc_contracts.admission.admit import admit
from apc_contracts.admission.record import note_place
from apc_contracts.admission.rules.newness import is_same
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import SignatureInvalid
from apc_contracts.identity.ids import is_key_of_another, shard_of
from apc_contracts.identity.signing import verify
from apc_contracts.judging.facts import Facts, SignatureState
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.session.advance import advance, halted_by_refusal
from apc_contracts.session.lifecycle import deliveries_to_repeat, resolve_recipients
from apc_contracts.session.movement import PacketInput
from apc_contracts.session.opening import contract_named, open_session
from apc_contracts.session.session import HeldPacket, Session
from apc_contracts.session.verdicts import hops_without_session, identity_without_session
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR, PRESENCE_SESSION, SUBSTRATE_RECIPIENT, PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_orchestrator.batch import Batch, hop_entry, lineage_entry, packet_entry
from apc_orchestrator.judging.deliveries import DeliveryRouting, Following
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.judging.refusals import Answers, Quarantine
from apc_orchestrator.judging.registry import Registry


class FactFinder:
    """Looks facts up in the memory of a shard."""

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._contracts = memory.contracts
        self._bound = memory.contract.limits.outstanding_deliveries
        self._registry = memory.registry
        self._outstanding = memory.outstanding
        self._protocols = memory.protocols

    def of_message(self, received: ReceivedPacket, message: Message, now: datetime) -> Facts:
        """Return the facts of a packet as it came from the broker."""
        packet = received.packet
        cause, ordinal = uuid_of(message.headers.get(headers.CAUSE)), message.headers.get(headers.ORDINAL)
        return Facts(
            now=now,
            registry=self._registry.by_id,
            user_id=message.user_id,
            is_received=True,
            has_copy_headers="CC" in message.headers or "BCC" in message.headers,
            hashes_to_shard=self._is_of_shard(packet.trace.session_id),
            signature=self._signature(received, signature_of(message)),
            packet_hash=received.packet_hash,
            payload_hash=received.payload_hash,
            cause=cause,
            ordinal=ordinal if isinstance(ordinal, int) else None,
            is_cause_delivered=self._is_cause_delivered(packet, cause),
            is_opening=message.headers.get(headers.OPENING) is True,
            is_contract_deployed=self._is_contract_deployed(packet),
            is_contract_known=self._is_contract_known(packet),
            schemas=self._registry.schemas,
            outstanding=self._outstanding.totals,
            own_outstanding=self._outstanding.of(packet.sender.agent_id),
            outstanding_bound=self._bound,
            quota_wait_ms=self._quota_wait_ms(packet, now),
            decayed_protocols=self._protocols.decayed(now),
        )

    def of_own(self, received: ReceivedPacket, now: datetime, decay: Mapping[str, Any] | None = None) -> Facts:
        """Return the facts of a packet of the orchestrator: exempt from bounds, quotas and budgets."""
        return Facts(
            now=now,
            registry=self._registry.by_id,
            user_id=self._memory.lease.user,
            packet_hash=received.packet_hash,
            payload_hash=received.payload_hash,
            is_cause_delivered=True,
            decay=decay,
        )

    def of_held(self, item: HeldPacket, now: datetime) -> Facts:
        """Return the facts of a packet that a pause held: its sender and signature were judged on arrival."""
        return Facts(
            now=now,
            registry=self._registry.by_id,
            packet_hash=item.received.packet_hash,
            payload_hash=item.received.payload_hash,
            outstanding=self._outstanding.totals,
            own_outstanding=self._outstanding.of(item.received.packet.sender.agent_id),
            outstanding_bound=self._bound,
            schemas=self._registry.schemas,
            decayed_protocols=self._protocols.decayed(now),
        )

    def _is_of_shard(self, session_id: str) -> bool:
        """Return whether the session is this shard's: by the log, and by its id if the log does not have it."""
        memory = self._memory
        if memory.sessions.get(session_id) is not None:
            return True
        return shard_of(session_id, memory.shards) == memory.lease.shard and not memory.sessions.is_foreign(session_id)

    def _quota_wait_ms(self, packet: Packet, now: datetime) -> int:
        sender = self._registry.by_id.get(packet.sender.agent_id)
        return 0 if sender is None else self._memory.quotas.wait_ms(sender.agent_id, sender.role, now)

    def _is_cause_delivered(self, packet: Packet, cause: UUID | None) -> bool:
        session = self._memory.sessions.get(packet.trace.session_id)
        identity = session.identity(cause) if session is not None and cause is not None else None
        if identity is None or identity.refusal is not None:
            return False
        return not {packet.sender.agent_id, SUBSTRATE_RECIPIENT}.isdisjoint(identity.recipients)

    def _is_contract_deployed(self, packet: Packet) -> bool:
        session = self._memory.sessions.get(packet.trace.session_id)
        return session is None or self._contracts.of_hash(session.document.contract_hash) is not None

    def _is_contract_known(self, packet: Packet) -> bool:
        name = contract_named(packet) if packet.packet_type is PacketType.SIGNAL else None
        return name is None or self._contracts.named(name) is not None

    def _signature(self, received: ReceivedPacket, header: str | None) -> SignatureState:
        sender = self._registry.by_id.get(received.packet.sender.agent_id)
        if header is None or sender is None:
            return SignatureState.ABSENT
        try:
            verify(header, sender.public_keys, received)
        except SignatureInvalid:
            return SignatureState.INVALID
        return SignatureState.VALID


def signature_of(message: Message) -> str | None:
    """Return the value of the header apc-signature."""
    header = message.headers.get(headers.SIGNATURE)
    return header if isinstance(header, str) else None


def uuid_of(value: object) -> UUID | None:
    """Return a UUID from a header or a message id; None for anything else."""
    try:
        return UUID(value) if isinstance(value, str) else None
    except ValueError:
        return None


# Packets that were judged before, and ids that are taken: never judged twice.


class Repeats:
    """Repeats the effects of a packet's first copy that may be missing, as far as its sender's quota allows."""

    def __init__(self, memory: ShardMemory, quarantine: Quarantine, answers: Answers, routing: DeliveryRouting) -> None:
        self._memory = memory
        self._quarantine = quarantine
        self._answers = answers
        self._routing = routing
        self._interval = timedelta(milliseconds=memory.contract.limits.retry_after_ms)

    def repeat(
        self, batch: Batch, received: ReceivedPacket, session: Session | None, facts: Facts, *, asks: bool = False
    ) -> None:
        """Answer a repeated packet of a known session: with its refusal, or with its open deliveries.

        Args:
            asks: its sender waits for the verdict, also for an acceptance.
        """
        packet = received.packet
        if not self._draw(batch, packet):
            return
        identity = session.identity(packet.packet_id) if session is not None else None
        if session is None or identity is None:
            return
        if identity.refusal is not None:
            self._answers.refusal(batch, received, identity.refusal, facts.user_id)
        elif asks and packet.packet_id not in session.held and not identity.retracted:
            self._answers.acceptance(batch, received, facts.user_id)
        opened = session.open.get(packet.packet_id)
        if opened is None or packet.expires <= batch.now:
            return
        for recipient, progress in deliveries_to_repeat(opened, batch.now, self._interval):
            self._routing.redeliver(batch, session, opened, recipient, progress)

    def repeat_without_session(
        self, batch: Batch, received: ReceivedPacket, known: Identity, facts: Facts, *, asks: bool = False
    ) -> Verdict:
        """Return the verdict on a packet whose id is taken without a session, and answer it.

        A repeat gets its recorded refusal, or an acceptance if it `asks`; another packet under this id is a conflict.
        """
        refusal, verdict = known.refusal, Verdict(VerdictKind.REPEAT)
        is_repeat = known.packet_hash == received.packet_hash
        if refusal is None:
            is_repeat = is_same(known, received.packet, facts)
        if not is_repeat:
            message = "another packet has this packet_id in the session and stands: send a new packet with a new id"
            refusal = Refusal("DUPLICATE_CONFLICT", "identity_is_free", "packet_id", message)
            verdict = Verdict(VerdictKind.REFUSED, refusal)
        if not self._draw(batch, received.packet):
            return verdict
        if refusal is None:
            if asks:
                self._answers.acceptance(batch, received, facts.user_id)
        elif is_repeat or self.record_conflict(batch, received, facts, "refused", refusal.code, refusal.reason):
            self._answers.refusal(batch, received, refusal, facts.user_id)
        return verdict

    def record_conflict(
        self, batch: Batch, received: ReceivedPacket, facts: Facts, kind: str, code: str | None, reason: str
    ) -> bool:
        """Record a packet whose id is taken; False when it only counts as part of a flood."""
        packet = received.packet
        session = self._memory.sessions.get(packet.trace.session_id)
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

    def _draw(self, batch: Batch, packet: Packet) -> bool:
        """Draw a repeat from its sender's quota; False when the quota is used up."""
        batch.repeats += 1
        sender, quotas = packet.sender, self._memory.quotas
        if sender.agent_id == ORCHESTRATOR:
            return True
        if quotas.wait_ms(sender.agent_id, sender.role, batch.now) > 0:
            return False
        quotas.draw(sender.agent_id, sender.role, batch.now)
        return True


class Verdicts:
    """Decides about packets and records the verdicts. What follows from them waits in `following`."""

    def __init__(
        self, memory: ShardMemory, quarantine: Quarantine, answers: Answers, repeats: Repeats, following: Following
    ) -> None:
        self._memory = memory
        self._sessions = memory.sessions
        self._contract_of = memory.contract_of
        self._quarantine = quarantine
        self._answers = answers
        self._repeats = repeats
        self._following = following
        self._id_codes = frozenset(_codes_without_id(memory.contract))

    def decide(
        self, batch: Batch, received: ReceivedPacket, facts: Facts, signature: str | None, *, asks: bool = False
    ) -> Verdict:
        """Return the verdict on a packet; record it unless the packet was judged before or takes no id.

        Args:
            asks: the sender of a repeat waits for its verdict.
        """
        packet = received.packet
        session = self._sessions.get(packet.trace.session_id)
        contract = self._contract_of(session) if session is not None else self._memory.contract_for(packet)
        began = perf_counter()
        verdict = admit(packet, session, facts, contract)
        batch.admit_seconds.append(perf_counter() - began)
        refusal, repeats = verdict.refusal, self._repeats
        known = None
        if session is None:
            known = self._sessions.packet_without_session(packet.trace.session_id, packet.packet_id)
        if known is not None and (refusal is None or refusal.code not in self._id_codes):
            return repeats.repeat_without_session(batch, received, known, facts, asks=asks)
        if verdict.kind is VerdictKind.REPEAT:
            repeats.repeat(batch, received, session, facts, asks=asks)
        elif verdict.kind is VerdictKind.RERUN:
            repeats.record_conflict(batch, received, facts, "rerun", None, "another payload for the same cause")
        elif refusal is not None and self._takes_no_id(session, packet, verdict, facts):
            if repeats.record_conflict(batch, received, facts, "refused", refusal.code, refusal.reason):
                self._answers.refusal(batch, received, refusal, facts.user_id)
        else:
            self._record(batch, received, verdict, facts, signature, contract)
        return verdict

    def _takes_no_id(self, session: Session | None, packet: Packet, verdict: Verdict, facts: Facts) -> bool:
        """Return whether a refused packet leaves its id free.

        By its code, for another's key, in the wrong shard, or beyond the bound. An id that is derived from a key can be
        guessed with the key: another sender could have its owner's packet refused by it. What came to the wrong shard
        may come to the right one yet, and a session has rows in one shard only.
        """
        refusal = verdict.refusal
        if refusal is None or refusal.code in self._id_codes or not facts.hashes_to_shard:
            return True
        if session is not None and halted_by_refusal(session, packet, verdict) is not None:
            return False
        if is_key_of_another(packet.packet_id, packet.sender.agent_id):
            return True
        return session is not None and session.refused_items >= self._contract_of(session).limits.refused_items

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
        if self._is_passed_over(packet, verdict, facts):
            known = identity_without_session(received, None, facts.proven_cause)
            return self._sessions.remember_without_session(PRESENCE_SESSION, packet.packet_id, known)
        if refusal is not None and facts.is_received:
            if not self._quarantine.has_room(batch, received.body, facts.user_id):
                return
        if contract is not self._memory.contract and self._sessions.get(packet.trace.session_id) is None:
            # A START, refused or not: the log holds every contract that its entries name.
            batch.contracts.add(contract.body)
        session = self._session_for(batch, packet, verdict, contract)
        recipients = _recipients(packet, session, self._memory.registry)
        note_place(verdict.facts, packet, session, recipients)
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
            self._following.apply(batch, session, advanced, packet.packet_id)

    def _is_passed_over(self, packet: Packet, verdict: Verdict, facts: Facts) -> bool:
        """Return whether a packet is a HEARTBEAT that says what is known already: its sender was heard of lately."""
        memory = self._memory
        if packet.packet_type is not PacketType.HEARTBEAT or packet.trace.session_id != PRESENCE_SESSION:
            return False
        if verdict.refusal is not None or memory.logs_heartbeats:
            return False
        return not memory.signs.is_silent(packet.sender.agent_id, facts.now)

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
        known = identity_without_session(received, refusal, facts.proven_cause)
        self._sessions.remember_without_session(session_id, packet.packet_id, known)


def _codes_without_id(contract: Contract) -> list[str]:
    """Return the refusals that take no id: up to and including BAD_SIGNATURE, and conflicts."""
    order = list(contract.refusals.order)
    return [*order[: order.index(contract.refusals.last_without_id) + 1], "DUPLICATE_CONFLICT"]


def _recipients(packet: Packet, session: Session | None, registry: Registry) -> tuple[str, ...]:
    if session is None:
        return tuple(recipient.agent_id for recipient in packet.recipients)
    return resolve_recipients(packet, session, registry.by_id)
