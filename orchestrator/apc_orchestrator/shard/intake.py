"""What a lease of a shard receives: inputs from the broker, and the sessions that they need from the log."""

import asyncio
import ctypes
import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import asyncpg

from apc_bus.concurrency import cancelled
from apc_bus.database import DATABASE_AWAY
from apc_bus.port import Bus, Delivery, Subscription
from apc_bus.settings import OrchestratorSettings
from apc_bus.telemetry import get_logger
from apc_bus.topology import gate_queue
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.session.lifecycle import verification_again
from apc_contracts.session.movement import Hop
from apc_contracts.session.session import Session
from apc_log.body_encryption import KeyRing
from apc_log.heads import read_head
from apc_log.session_loading import load_session
from apc_orchestrator.batch import Batch, hop_entry
from apc_orchestrator.errors import SessionUnloadable, ShardLost
from apc_orchestrator.judging.inputs import is_receipts
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import Sessions
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Fence, Lease
from apc_orchestrator.verification import Verifier

# Timers on which the gate fails. A defect of ours must not stop the shard.

KEPT = 10_000
"""Tags that are remembered; the oldest is forgotten first, and its timer fails once more."""

_log = get_logger("apc_orchestrator")


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


@dataclass(frozen=True, slots=True)
class ShardResources:
    """The resources of one lease; they do not change until it ends."""

    settings: OrchestratorSettings
    contracts: Contracts
    bus: Bus
    pool: asyncpg.Pool
    """Of the database that has the shard."""
    home: asyncpg.Pool
    """Of the database that has the registry, and when agents were heard of last."""
    inputs: Subscription
    """The shard's queue. Log batches go out on its channel, so that only its active consumer gets them confirmed."""
    lease: Lease
    registry: Registry
    protocols: ProtocolLedger
    verifier: Verifier
    unjudgeable_timers: UnjudgeableTimers
    note_standby: Callable[[str], None] = lambda name: None
    """Called with the name of another orchestrator that stands by for the shard."""
    listening_since: float = -inf
    """When the subscription of the inputs began, seconds of the monotonic clock: a standby has had it for long."""

    @property
    def contract(self) -> Contract:
        """The deployment's default contract: its limits hold for all sessions."""
        return self.contracts.default


HANDED_OVER_SECONDS = 0.05
"""How long a draining orchestrator waits for deliveries once the broker has answered a question that it asked later."""

Stopping = asyncio.Task[Literal[True]]


class InputIntake:
    """Receives waiting inputs, up to one batch. Deliveries that were not taken wait for the next batch."""

    def __init__(self, resources: ShardResources) -> None:
        self._inputs = resources.inputs
        self._bus = resources.bus
        self._queue = gate_queue(resources.lease.shard)
        self._settings = resources.settings
        self._fence = Fence.of(resources.settings.heartbeat)
        self._wake = asyncio.Event()
        self._receiving: asyncio.Future[list[Delivery]] | None = None

    @property
    def longest_wait_seconds(self) -> float:
        """The longest wait, shorter than the interval of questions to the broker, so that silence is noticed."""
        return self._fence.question_seconds

    def wake(self) -> None:
        """End the wait for inputs: there is something else to do."""
        self._wake.set()

    async def next(self, stopping: Stopping, patience: float) -> list[Delivery]:
        """Wait for inputs; return nothing when `patience` seconds have passed, or at `wake` or the stop."""
        received = await self._receive(stopping, patience)
        if received and not stopping.done() and all(is_receipts(delivery.message) for delivery in received):
            # Only barriers wait for receipts, and a packet that arrives now would wait for their log batch.
            received += await self._receive(stopping, self._settings.receipts_linger_seconds, len(received))
        return received

    async def handed_over(self) -> list[Delivery]:
        """Return the deliveries that the broker has sent already. Raises BusError when it does not answer.

        On its connection an answer comes behind what was sent before, however long that takes.
        """
        receiving = self._begin_receiving(self._settings.batch_packets)
        if not receiving.done():
            await self._bus.depth(self._queue)
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


# Return memory to the system: the allocator keeps what a flood of large messages has taken.

FLOOD_BYTES = 64 << 20
"""Bytes that must arrive before memory is returned."""


class MemoryReturn:
    """Counts the bytes that arrive; `after_flood` returns the memory they have left behind."""

    def __init__(self) -> None:
        self._trim = _allocator_trim()
        self._received = 0

    def note(self, size: int) -> None:
        """Count received bytes."""
        self._received += size

    def after_flood(self) -> bool:
        """Return free memory to the system if much arrived since the last time; return whether it did."""
        if self._received < FLOOD_BYTES:
            return False
        self._received = 0
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        return True


def _allocator_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`; other allocators return memory by themselves."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return trim


EVICTION_SECONDS = 5.0
LOADED_AT_ONCE = 4
"""Sessions that are read at the same time when a shard is taken; each needs a connection of the pool meanwhile."""


class SessionLoader:
    """Keeps the sessions that are being judged in memory, and no others."""

    def __init__(self, resources: ShardResources, sessions: Sessions, judge: Judge) -> None:
        self._resources = resources
        self._sessions = sessions
        self._judge = judge
        self._ring = KeyRing.of(resources.settings)
        self._erased: list[tuple[Session, list[Hop]]] = []
        self._allocator = MemoryReturn()
        self._evicted_at = 0.0

    async def can_load(self, session_ids: Iterable[str]) -> bool:
        """Load these sessions; return False when one of them cannot be loaded now."""
        try:
            for session_id in session_ids:
                await self.load(session_id)
        except SessionUnloadable:
            return False
        return True

    async def load_all(self, session_ids: Iterable[str]) -> None:
        """Load these sessions, several at a time: reading one is some fifteen questions to the database in turn.

        Raises:
            SessionUnloadable: the database is away.
        """
        left = iter(session_ids)

        async def load_in_turn() -> None:
            for session_id in left:
                await self.load(session_id)

        loading = [asyncio.create_task(load_in_turn()) for _ in range(LOADED_AT_ONCE)]
        try:
            await asyncio.gather(*loading)
        finally:
            await cancelled(*loading)

    async def load(self, session_id: str) -> Session | None:
        """Return the session, or None when this shard has none with this id.

        Raises:
            SessionUnloadable: the database is away.
        """
        if self._sessions.is_known(session_id):
            return self._sessions.get(session_id)
        try:
            erased: list[Hop] = []
            resources = self._resources
            shard = resources.lease.shard
            session = await load_session(resources.pool, session_id, resources.contracts, self._ring, erased, shard)
        except DATABASE_AWAY as error:
            _log.warning("session_unloadable", session_id=session_id, reason=str(error))
            raise SessionUnloadable(f"session {session_id}: {error}") from error
        if session is None:
            self._sessions.note_foreign(session_id)
            return None
        if not isinstance(session, Session):
            self._sessions.note_absence(session_id, session)
            return None
        self._judge.adopt(session)
        if erased:
            self._erased.append((session, erased))
        for opened in session.open.values():
            if opened.verification == "pending":
                self._resources.verifier.submit(verification_again(session, opened.received))
        return session

    def end_erased(self, batch: Batch) -> None:
        """Log the end of deliveries whose packet was erased: there is nothing left to deliver."""
        erased, self._erased = self._erased, []
        for session, hops in erased:
            _log.warning("deliveries_erased", session_id=session.session_id, hops=len(hops))
            batch.entries += [hop_entry(session.session_id, hop) for hop in hops]
            batch.touched[session.session_id] = session

    def note_received(self, size: int) -> None:
        """Count received bytes: memory that a flood leaves free is returned to the system later."""
        self._allocator.note(size)

    async def evict_sometimes(self, last_sent: int) -> None:
        """Evict surplus sessions whose last batch is committed and sent. Skipped while the database is away."""
        now = asyncio.get_running_loop().time()
        if now - self._evicted_at < EVICTION_SECONDS:
            return
        self._evicted_at = now
        self._allocator.after_flood()
        most, lease = self._resources.settings.sessions_in_memory, self._resources.lease
        if not self._sessions.has_surplus(most):
            return
        try:
            head = await read_head(self._resources.pool, lease.shard)
        except DATABASE_AWAY:
            return
        if head.epoch == lease.epoch:
            self._sessions.evict(min(head.batch_no, last_sent), most)
