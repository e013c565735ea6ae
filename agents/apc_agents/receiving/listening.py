"""What an agent hears on the substrate: the packets that others have sent to everybody."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from apc_agents.receiving.delivery import Inbound, read_body, read_headers
from apc_agents.session_phase import KnownSessions
from apc_bus.last_resort import ATTEMPTS
from apc_bus.port import Bus, Delivery
from apc_bus.tracing import trace_headers
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import shard_of

_log = structlog.get_logger("apc_agents")


class SubstrateListener:
    """Reads the stream from where it was last, at first from its end, and hands packets on one batch after another."""

    def __init__(
        self, bus: Bus, agent_id: str, sessions: KnownSessions, put: Callable[[Inbound], None], shards: int
    ) -> None:
        self._bus = bus
        self._agent_id = agent_id
        self._sessions = sessions
        self._put = put
        self._shards = shards
        self._next: int | None = None
        self._failures: Counter[int] = Counter()
        """By the offset of what ended this listener."""

    async def run(self) -> None:
        """Listen until cancelled. Raises BusError when the stream is lost: what is heard next follows on."""
        async with self._bus.read_substrate("next" if self._next is None else self._next) as stream:
            while batch := await stream.receive():
                heard = [inbound for delivery in batch if (inbound := self._hear(delivery)) is not None]
                for inbound in heard:
                    self._put(inbound)
                await asyncio.gather(*(inbound.done for inbound in heard), return_exceptions=True)
                offsets = [delivery.offset for delivery in batch if delivery.offset is not None]
                if offsets:
                    self._next = max(offsets) + 1
                    self._failures.clear()
                await stream.ack(batch[-1], multiple=True)

    def _hear(self, delivery: Delivery) -> Inbound | None:
        """Read a delivery. One that fails ATTEMPTS times for a reason that nobody foresaw is passed over."""
        try:
            return self._read(delivery)
        except Exception:
            offset = delivery.offset or 0
            self._failures[offset] += 1
            if self._failures[offset] < ATTEMPTS:
                raise
            _log.exception("substrate_passed_over", agent_id=self._agent_id, offset=delivery.offset)
            return None

    def _read(self, delivery: Delivery) -> Inbound | None:
        """Return the packet of another agent that has not expired; None for everything else."""
        try:
            packet = read_body(delivery.message)
            told = read_headers(delivery.message.headers)
        except (PacketRefused, ValueError) as error:
            _log.warning("substrate_unreadable", agent_id=self._agent_id, offset=delivery.offset, reason=str(error))
            return None
        if packet.sender.agent_id == self._agent_id or packet.expires <= datetime.now(UTC):
            return None
        self._sessions.learn(packet, told.moment if told else None)
        shard = shard_of(packet.trace.session_id, self._shards)
        trace = trace_headers(delivery.message.headers)
        return Inbound(packet, 1, shard, has_receipts=False, is_urgent=False, is_heard=True, trace=trace)
