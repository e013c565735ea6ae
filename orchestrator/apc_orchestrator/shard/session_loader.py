"""The sessions of a shard: loaded from the log before their first input, evicted when committed."""

import asyncio
import ctypes
import gc
from collections.abc import Callable, Iterable

import structlog

from apc_bus.database import DATABASE_AWAY
from apc_contracts.session.lifecycle import verification_again
from apc_contracts.session.movement import Hop
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.body_encryption import KeyRing
from apc_log.heads import read_head
from apc_log.session_loading import load_session
from apc_orchestrator.batch import Batch
from apc_orchestrator.errors import SessionUnloadable
from apc_orchestrator.judging.entries import hop_entry
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import Sessions
from apc_orchestrator.shard.intake import ShardResources

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
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found


EVICTION_SECONDS = 5.0

_log = structlog.get_logger("apc_orchestrator")


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

    async def load(self, session_id: str) -> Session | None:
        """Return the session, or None when this shard has none with this id.

        Raises:
            SessionUnloadable: the database is away.
        """
        if session_id == PRESENCE_SESSION or self._sessions.is_known(session_id):
            return self._sessions.get(session_id)
        try:
            erased: list[Hop] = []
            resources = self._resources
            shard = resources.lease.shard
            found = await load_session(resources.pool, session_id, resources.contracts, self._ring, erased, shard)
        except DATABASE_AWAY as error:
            _log.warning("session_unloadable", session_id=session_id, reason=str(error))
            raise SessionUnloadable(f"session {session_id}: {error}") from error
        if found is None:
            self._sessions.note_foreign(session_id)
            return None
        if not isinstance(found, Session):
            self._sessions.note_absence(session_id, found)
            return None
        self._judge.adopt(found)
        if erased:
            self._erased.append((found, erased))
        for opened in found.open.values():
            if opened.verification == "pending":
                self._resources.verifier.submit(verification_again(found, opened.received))
        return found

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
