"""Receive the inputs of a shard from the broker."""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import asyncpg
import structlog

from apc_bus.concurrency import cancelled
from apc_bus.port import Bus, Delivery, Subscription
from apc_bus.settings import OrchestratorSettings
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_orchestrator.errors import ShardLost
from apc_orchestrator.judging.inputs import is_receipts
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Fence, Lease
from apc_orchestrator.verification import Verifier

# Timers on which the gate fails. A defect of ours must not stop the shard.

KEPT = 10_000
"""Tags that are remembered; the oldest is forgotten first, and its timer fails once more."""

_log = structlog.get_logger("apc_orchestrator")


class UnjudgeableTimers:
    """Tags of timers that were given up. A process keeps them across its leases of a shard."""

    def __init__(self) -> None:
        self._tags: OrderedDict[Hashable, None] = OrderedDict()

    def __contains__(self, tag: Hashable) -> bool:
        return tag in self._tags

    def give_up(self, tag: Hashable, error: Exception) -> ShardLost:
        """Remember the timer, and return the error to raise: memory may be half changed, so the shard is left."""
        self._tags[tag] = None
        if len(self._tags) > KEPT:
            self._tags.popitem(last=False)
        _log.exception("timer_unjudgeable", tag=repr(tag))
        return ShardLost(f"a timer cannot be judged: {error!r}")


# What one lease of a shard works with.


@dataclass(frozen=True, slots=True)
class ShardResources:
    """The resources of one lease; they do not change until it ends."""

    settings: OrchestratorSettings
    contracts: Contracts
    bus: Bus
    pool: asyncpg.Pool
    inputs: Subscription
    """The shard's queue. Log batches go out on its channel, so that only its active consumer gets them confirmed."""
    lease: Lease
    registry: Registry
    protocols: ProtocolLedger
    verifier: Verifier
    unjudgeable_timers: UnjudgeableTimers

    @property
    def contract(self) -> Contract:
        """The deployment's default contract: its limits hold for all sessions."""
        return self.contracts.default


HANDED_OVER_SECONDS = 0.05
"""How long a draining gate waits for deliveries that the broker has sent but may not have arrived yet."""

Stopping = asyncio.Task[Literal[True]]


class InputIntake:
    """Receives waiting inputs, up to one batch. Deliveries that were not taken wait for the next batch."""

    def __init__(self, resources: ShardResources) -> None:
        self._inputs = resources.inputs
        self._settings = resources.settings
        self._fence = Fence.of(resources.settings.heartbeat)
        self._wake = asyncio.Event()
        self._receiving: asyncio.Future[list[Delivery]] | None = None

    @property
    def longest_wait_seconds(self) -> float:
        """Return the longest wait, shorter than the interval of questions to the broker, so that silence is noticed."""
        return self._fence.question_seconds

    def wake(self) -> None:
        """End the wait for inputs: there is something else to do."""
        self._wake.set()

    async def next(self, stopping: Stopping, patience: float) -> list[Delivery]:
        """Wait for inputs; return nothing when `patience` seconds have passed, or at `wake` or the stop."""
        received = await self._receive(stopping, patience)
        if received and not stopping.done() and all(is_receipts(one.message) for one in received):
            # Only barriers wait for receipts, and a packet that arrives now would wait for their log batch.
            received += await self._receive(stopping, self._settings.receipts_linger_seconds, len(received))
        return received

    async def handed_over(self) -> list[Delivery]:
        """Return the deliveries that the broker has sent already."""
        receiving = self._begin_receiving(self._settings.batch_packets)
        await asyncio.wait({receiving}, timeout=HANDED_OVER_SECONDS)
        return self._take_received()

    def check_silence(self) -> None:
        """Raise ShardLost after a silence longer than the fence allows: the broker may have given the shard away.

        Raises:
            ShardLost: the broker was silent for too long.
        """
        silence = self._inputs.longest_silence
        if silence > self._fence.silence_seconds:
            raise ShardLost(f"the broker was silent for {silence:.1f} s")

    async def close(self) -> None:
        """Stop receiving."""
        if self._receiving is not None:
            await cancelled(self._receiving)

    async def _receive(self, stopping: Stopping, patience: float, already: int = 0) -> list[Delivery]:
        """Receive within `patience` seconds; `already` inputs were taken for the same batch."""
        receiving = self._begin_receiving(max(1, self._settings.batch_packets - already))
        if not receiving.done():
            waking = asyncio.ensure_future(self._wake.wait())
            try:
                watched: set[asyncio.Future[Any]] = {receiving, stopping, waking}
                await asyncio.wait(watched, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()
        self._wake.clear()
        return self._take_received()

    def _begin_receiving(self, most: int) -> "asyncio.Future[list[Delivery]]":
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._inputs.receive(most, self._settings.batch_bytes))
        return self._receiving

    def _take_received(self) -> list[Delivery]:
        if self._receiving is None or not self._receiving.done():
            return []
        receiving, self._receiving = self._receiving, None
        return receiving.result()
