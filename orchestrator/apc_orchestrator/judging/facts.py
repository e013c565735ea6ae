"""Find the facts of one input: what `admit` needs beside the packet and its session."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from apc_bus import headers
from apc_bus.port import Message
from apc_contracts.errors import SignatureInvalid
from apc_contracts.identity.ids import shard_of
from apc_contracts.identity.signing import verify
from apc_contracts.judging.facts import Facts, SignatureState
from apc_contracts.packet import Packet
from apc_contracts.session.opening import contract_named
from apc_contracts.session.session import HeldPacket
from apc_contracts.vocabulary import SUBSTRATE_RECIPIENT, PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_orchestrator.judging.memory import ShardMemory


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
        """Return whether the session is this shard's: by its id, and by the log if it has it."""
        memory = self._memory
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
