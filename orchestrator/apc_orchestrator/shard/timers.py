"""Deadlines of the shard's sessions: each one that passes becomes a packet of the orchestrator."""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from apc_bus.crash_points import crash_point
from apc_contracts.admission.rules.capacity import bound_of
from apc_contracts.session.emissions import timer
from apc_contracts.session.events import ends_what_may_come
from apc_contracts.session.session import Session
from apc_contracts.session.task import wake_of_timer
from apc_orchestrator.batch import Batch
from apc_orchestrator.errors import SessionUnloadable
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.shard.intake import EVICTION_SECONDS, SessionLoader, ShardResources

OUTDATED_KEPT = 1024
"""Outdated heap entries that are kept at least; beyond twice the sessions the heap is rebuilt."""


class Deadlines:
    """The earliest deadline of each session; a heap whose outdated entries are skipped."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, str]] = []
        self._current: dict[str, datetime] = {}

    def note(self, session_id: str, due: datetime | None) -> None:
        """Set the session's next deadline; None = it has none."""
        if due is None:
            self._current.pop(session_id, None)
        elif self._current.get(session_id) != due:
            self._current[session_id] = due
            heapq.heappush(self._heap, (due, session_id))
            if len(self._heap) > 2 * len(self._current) + OUTDATED_KEPT:
                self._heap = [(moment, name) for name, moment in self._current.items()]
                heapq.heapify(self._heap)

    def __len__(self) -> int:
        """Return the number of heap entries, outdated ones included."""
        return len(self._heap)

    @property
    def next(self) -> datetime | None:
        """The earliest deadline of all, None without one."""
        while self._heap and self._current.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: datetime) -> Iterator[str]:
        """Yield the sessions with a deadline at or before `now`, the earliest first.

        Each is removed when it is yielded and must be noted again, later than `now`; the others keep their place.
        """
        while (earliest := self.next) is not None and earliest <= now:
            _, session_id = heapq.heappop(self._heap)
            del self._current[session_id]
            yield session_id


RETRY_SECONDS = 0.5
LOOKS_A_BATCH = 1_000
"""Sessions that one batch looks at for timers: with very many due at one moment, inputs still get their turn."""


class Timers:
    """Fires the deadlines that have passed."""

    def __init__(
        self,
        resources: ShardResources,
        loader: SessionLoader,
        judge: Judge,
        memory: ShardMemory,
    ) -> None:
        self._contract_of = memory.contract_of
        self._open_deliveries = memory.outstanding.totals
        self._registered = memory.registry.by_id
        self._bound = resources.contract.limits.outstanding_deliveries
        self._loader = loader
        self._judge = judge
        self._unjudgeable = resources.unjudgeable_timers
        self._deadlines = Deadlines()

    def note(self, session_id: str, due: datetime | None) -> None:
        """Set the session's next deadline; None = it has none."""
        self._deadlines.note(session_id, due)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the next deadline; None without one."""
        due = self._deadlines.next
        return None if due is None else max(0.0, (due - datetime.now(UTC)).total_seconds())

    async def fire(self, batch: Batch) -> None:
        """Judge a timer packet for each deadline that has passed.

        Raises:
            ShardLost: a timer packet cannot be judged.
        """
        for looks, session_id in enumerate(self._deadlines.due(batch.now)):
            if batch.is_full() or looks >= LOOKS_A_BATCH:
                self._deadlines.note(session_id, batch.now)
                break
            try:
                session = await self._loader.load(session_id)
            except SessionUnloadable:
                self._deadlines.note(session_id, batch.now + timedelta(seconds=RETRY_SECONDS))
                continue
            if session is not None:
                has_held = self._fire_due(batch, session)
                due = session.next_deadline if batch.is_full() else _next_look(session, batch.now)
                if has_held and not batch.is_full():
                    due = batch.now + timedelta(seconds=RETRY_SECONDS)
                self._deadlines.note(session_id, due)

    def expire(self, batch: Batch, session: Session) -> None:
        """Judge the timers after which an input of this session comes too late, before the input.

        They may have become due while no orchestrator was there, or in this batch: the recorded time decides.

        Raises:
            ShardLost: a timer packet cannot be judged.
        """
        due = session.next_deadline
        if due is not None and due <= batch.now:
            for kind in filter(ends_what_may_come, _due(session, batch)):
                self._judge_timer(batch, session, kind)

    def _fire_due(self, batch: Batch, session: Session) -> bool:
        """Judge what is due; return whether a timer of an agent was held back, because its inbox has no room."""
        has_held = False
        for kind in _due(session, batch):
            if batch.is_full():  # the others go off in the next batch, at once
                return has_held
            if self._has_room(session, kind):
                self._judge_timer(batch, session, kind)
            else:
                has_held = True
        return has_held

    def _judge_timer(self, batch: Batch, session: Session, kind: str) -> None:
        tag = ("timer", session.session_id, session.step, kind)
        if tag in self._unjudgeable:
            return
        try:
            self._judge.judge_own(batch, timer(session, kind, batch.now, self._contract_of(session)))
        except Exception as error:
            raise self._unjudgeable.give_up(tag, error) from error
        crash_point("gate.after_timer")

    def _has_room(self, session: Session, kind: str) -> bool:
        """Return whether the agent whose timer this is has room in its inbox; other timers are the orchestrator's."""
        packet_id, work = wake_of_timer(kind), session.work
        wake = None if packet_id is None or work is None else work.wakes.get(packet_id)
        if wake is None:
            return True
        return self._open_deliveries.get(wake.agent, 0) < bound_of(self._registered.get(wake.agent), self._bound)


def _due(session: Session, batch: Batch) -> Iterator[str]:
    """Yield the deadlines that have passed, the earliest first."""
    deadlines = session.document.deadlines
    for kind in sorted(deadlines, key=deadlines.__getitem__):
        # Read again each time: an earlier timer may have moved this deadline.
        due = session.document.deadlines.get(kind)
        if due is not None and due <= batch.now and not session.is_paused:
            yield kind


def _next_look(session: Session, now: datetime) -> datetime | None:
    """Return the session's next deadline; one that was set aside is not checked in every batch."""
    due = session.next_deadline
    return due if due is None or due > now else now + timedelta(seconds=EVICTION_SECONDS)
