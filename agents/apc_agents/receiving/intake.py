"""What happens to a delivery at once, even while a handler runs: read, fence, learn, and drop what came before."""

import asyncio
from collections import defaultdict

import structlog

from apc_agents.emitting.acknowledgements import Acknowledgements
from apc_agents.receiving.dedupe import DeliveryKey, FencingTokens, RecentKeys
from apc_agents.receiving.delivery import DeliveryHeaders, Inbound, is_refusal, read_body, read_headers
from apc_agents.receiving.refusals import log_refusal
from apc_agents.session_phase import KnownSessions
from apc_bus.errors import DeadLetter
from apc_bus.port import Delivery
from apc_bus.telemetry import packet_ids
from apc_bus.tracing import trace_headers
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import shard_of
from apc_contracts.packet import Packet
from apc_contracts.vocabulary import Channel

_log = structlog.get_logger("apc_agents")


class Intake:
    """Turns deliveries into packets to handle, each (packet_id, attempt) once."""

    def __init__(self, agent_id: str, sessions: KnownSessions, acknowledgements: Acknowledgements, shards: int) -> None:
        self._agent_id = agent_id
        self._sessions = sessions
        self._acknowledgements = acknowledgements
        self._shards = shards
        self._fencing_tokens: defaultdict[int, FencingTokens] = defaultdict(FencingTokens)
        self._open: dict[DeliveryKey, Inbound] = {}
        self._ended: RecentKeys[DeliveryKey] = RecentKeys()

    def take(self, delivery: Delivery, is_urgent: bool) -> tuple[Inbound | None, bool]:
        """Return the packet of a delivery, and whether it is new.

        (None, False) = drop it. (inbound, False) = it is being handled already: wait for the same end.

        Raises:
            DeadLetter: bytes that are no packet of a gate.
        """
        packet, told = self._read(delivery)
        if told is not None and self._is_fenced(told):
            _log.info(
                "delivery_fenced",
                agent_id=self._agent_id,
                shard=told.shard,
                epoch=told.epoch,
                batch=told.batch_no,
                **packet_ids(packet),
            )
            return None, False
        self._sessions.learn(packet, told.moment if told else None)
        key = (packet.packet_id, told.attempt if told else 1)
        if key in self._ended:
            return None, False
        if (known := self._open.get(key)) is not None:
            return known, False
        self._acknowledgements.take(packet)
        if told is not None and is_refusal(packet):
            log_refusal(self._agent_id, packet)
        shard = told.shard if told else shard_of(packet.trace.session_id, self._shards)
        has_receipts = told is not None and not is_refusal(packet)
        trace = trace_headers(delivery.message.headers)
        inbound = self._open[key] = Inbound(packet, key[1], shard, has_receipts, is_urgent, trace)
        inbound.rights = told.rights if told else frozenset()
        inbound.risk = delivery.risk
        return inbound, True

    def _is_fenced(self, told: DeliveryHeaders) -> bool:
        return told.mark is not None and self._fencing_tokens[told.shard].is_fenced(
            told.epoch, told.batch_no, told.mark
        )

    def end(self, inbound: Inbound, done: asyncio.Future[None]) -> None:
        """Record the delivery's end: a failed one may come again, any other is remembered."""
        self._open.pop(inbound.key, None)
        self._acknowledgements.forget(inbound.packet)
        if not done.cancelled() and done.exception() is None:
            self._ended.add(inbound.key)

    def give_back(self, error: Exception) -> None:
        """End what is still open with this error."""
        for inbound in tuple(self._open.values()):
            if not inbound.done.done():
                inbound.done.set_exception(error)

    def _read(self, delivery: Delivery) -> tuple[Packet, DeliveryHeaders | None]:
        try:
            packet, told = read_body(delivery.message), read_headers(delivery.message.headers)
            if told is None:
                self._check_own(packet)
            return packet, told
        except (PacketRefused, ValueError) as error:
            _log.error(
                "delivery_unreadable",
                agent_id=self._agent_id,
                message_id=delivery.message.message_id,
                reason=str(error),
            )
            raise DeadLetter(f"message {delivery.message.message_id} is no delivery of a gate: {error}") from error

    def _check_own(self, packet: Packet) -> None:
        """Check a message without the gate's headers: only a replica of this agent may send one, to its modules."""
        if packet.channel is not Channel.INTRA_AGENT or packet.sender.agent_id != self._agent_id:
            raise ValueError(f"no gate has delivered it, and it is no INTRA_AGENT packet of {self._agent_id}")
