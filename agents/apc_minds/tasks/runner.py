"""Runs the tasks of one agent in this process: takes them by lease, ends them, announces what becomes of them."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

from pydantic import JsonValue
from structlog.contextvars import bind_contextvars

from apc_agents.clearance import PROVENANCE
from apc_agents.emission import Draft, KnownParent
from apc_agents.emitter import Emitter
from apc_agents.errors import EmitError, EmitUnconfirmed
from apc_agents.json_values import storable
from apc_agents.task_port import Claim, MakeEffect, Task, TaskEvent, TaskStatus, TaskStore
from apc_bus.concurrency import cancelled, first_of, unasked_cancel_fails
from apc_bus.telemetry import get_logger
from apc_contracts.agent import SecurityLevel
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import Channel, Signal
from apc_minds.tasks.references import lookup, substitute
from apc_minds.tools import (
    KnowledgeScope,
    ReferenceUnknown,
    Runnable,
    TaskLost,
    ToolCall,
    ToolFailed,
    ToolRegistry,
    invoke,
)

Announce = Callable[[TaskEvent], Awaitable[None]]
"""Tells of an event; raises EmitUnconfirmed when it is to be told again, another EmitError when it never will be."""

_log = get_logger("apc_minds")


class TaskRunner:
    """The tasks of one agent in one process.

    Args:
        agent_id: whose tasks.
        registry: the tools that run them.
        store: where they are kept.
        announce: tells of every event.
        security_level: the highest at which they may run: a row of the store may be anybody's writing.
        concurrency: how many run at a time.
        lease: how long a task stays with this process when it says nothing; after a crash others take it up then.
        poll: how long news of other processes may take; a host asks for those of all its agents at once.
    """

    def __init__(
        self,
        agent_id: str,
        registry: ToolRegistry,
        store: TaskStore,
        announce: Announce,
        *,
        security_level: SecurityLevel = SecurityLevel.USER,
        concurrency: int = 4,
        lease: timedelta = timedelta(seconds=15),
        poll: timedelta = timedelta(seconds=1),
    ) -> None:
        self._agent_id = agent_id
        self._registry = registry
        self._store = store
        self._announce = announce
        self._security_level = security_level
        self._concurrency = concurrency
        self._lease = lease
        self._poll = poll
        self._worker = f"{agent_id}@{socket.gethostname()}:{os.getpid()}"
        self._running: dict[UUID, _Attempt] = {}
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Run tasks until cancelled; those that run then go back to the store, for another worker."""
        try:
            await first_of(self._take(), self._renew(), self._tell())
        finally:
            await self._give_back()

    async def _take(self) -> None:
        while True:
            while len(self._running) >= self._concurrency:
                self._ended.clear()
                await self._ended.wait()
            count = self._store.news.count
            claim = await self._store.claim(self._agent_id, self._worker, self._lease)
            if claim is None:
                await self._store.news.since(count, self._poll)
            else:
                await self._start(claim)

    async def _start(self, claim: Claim) -> None:
        task_id = claim.task.task_id
        if (former := self._running.get(task_id)) is not None:
            # This process was too slow to renew its own lease: the former attempt ends before the next begins.
            await cancelled(former.work)
        run = _Attempt(claim, self._registry, self._store, self._security_level)
        run.work = asyncio.create_task(run.until_ended(), name=f"task {task_id}")
        self._running[task_id] = run

        def forget(work: asyncio.Task[None]) -> None:
            if self._running.get(task_id) is run:
                del self._running[task_id]
            self._ended.set()
            if not work.cancelled() and (error := work.exception()) is not None:
                _log.error("task_failed_to_end", task_id=str(task_id), exc_info=error)

        run.work.add_done_callback(forget)
        await self._store.news.tell()  # there is a lease to keep

    async def _renew(self) -> None:
        """Keep the leases, and cancel what is to be cancelled."""
        while True:
            count = self._store.news.count
            for task_id, run in list(self._running.items()):
                try:
                    reason = await self._store.renew(task_id, run.attempt, self._lease)
                except TaskLost:
                    run.lose()
                else:
                    run.cancel(reason)
            await self._store.news.since(count, min(self._poll, self._lease / 3) if self._running else self._poll)

    async def _tell(self) -> None:
        """Announce events in their order."""
        while True:
            count = self._store.news.count
            events = await self._store.unannounced(self._agent_id)
            try:
                for event in events:
                    await self._tell_one(event)
            except EmitUnconfirmed as error:
                _log.warning("task_event_waits", reason=str(error))
                events = ()
            if not events:
                await self._store.news.since(count, self._poll)

    async def _tell_one(self, event: TaskEvent) -> None:
        try:
            await self._announce(event)
        except EmitUnconfirmed:
            raise
        except EmitError as refused:
            _log.warning("task_event_refused", task_id=str(event.task_id), reason=str(refused))
        await self._store.announced(event.task_id, event.number)

    async def _give_back(self) -> None:
        runs = list(self._running.values())
        await cancelled(*(run.work for run in runs))


class _Attempt:
    """One attempt at a task; what a tool sees of it is the TaskHandle."""

    work: asyncio.Task[None]

    def __init__(self, claim: Claim, registry: ToolRegistry, store: TaskStore, highest: SecurityLevel) -> None:
        self._claim = claim
        self._level = min(claim.task.spec.security_level, highest, key=lambda level: level.rank)
        self._registry = registry
        self._store = store
        self.attempt = claim.task.attempt
        self._cancel_reason: str | None = None
        self._is_ending = False

    def cancel(self, reason: str | None) -> None:
        """Cancel it if there is a reason; how it ended stays when that is just being kept."""
        if reason is not None and self._cancel_reason is None and not self._is_ending:
            self._cancel_reason = reason
            self.work.cancel()

    def lose(self) -> None:
        """End the run silently: another worker has the task."""
        if not self._is_ending:
            self.work.cancel()

    async def until_ended(self) -> None:
        """Run it and keep how it ended; a task that another worker has taken is left alone."""
        task = self._claim.task
        # Its own asyncio task: what is bound here ends with it.
        bind_contextvars(task_id=str(task.task_id), session_id=task.session_id, attempt=self.attempt)
        try:
            with unasked_cancel_fails():
                result = await self._result(task)
        except ToolFailed as error:
            await self._finish(TaskStatus.FAILED, error=str(error))
        except TaskLost as lost:
            _log.warning("task_lost", task_id=str(task.task_id), attempt=self.attempt, reason=str(lost))
        except asyncio.CancelledError:
            if self._cancel_reason is None:
                await self._store.release(task.task_id, self.attempt)
                raise
            await self._finish(TaskStatus.CANCELLED, error=self._cancel_reason)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # also what is no Exception, such as a panic of native code
            _log.error("task_failed", task_id=str(task.task_id), exc_info=error)
            await self._finish(TaskStatus.FAILED, error=storable(f"{type(error).__name__}: {error}"))
        else:
            await self._finish(TaskStatus.SUCCEEDED, result=result)

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Keep how far it is."""
        note = None if note is None else storable(note)
        await self._store.progress(self._claim.task.task_id, self.attempt, fraction, note)

    async def once(self, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect once."""
        return await self._store.once(self._claim.task.task_id, self.attempt, name, make)

    async def _result(self, task: Task) -> JsonValue:
        spec = task.spec
        runnable = runnable_of(task, self._registry, self._level)
        try:
            params = substitute(dict(spec.params), lookup(spec.variables, {**spec.results, **self._claim.results}))
        except ReferenceUnknown as error:
            raise ToolFailed(str(error)) from error
        problems = runnable.problems_of(params, "params")
        if problems:
            raise ToolFailed(str(problems[0]))
        call = ToolCall(
            action_id=spec.action_id,
            agent_id=task.agent_id,
            session_id=task.session_id,
            security_level=self._level,
            key=task.task_id,
            scope=KnowledgeScope(spec.knowledge, self._registry.read_knowledge) if runnable.reads else None,
            task=self,
            task_id=str(task.task_id),
        )
        return await invoke(runnable, params, {ToolCall: call})

    async def _finish(self, status: TaskStatus, *, result: JsonValue = None, error: str | None = None) -> None:
        self._is_ending = True
        try:
            await self._store.finish(self._claim.task.task_id, self.attempt, status, result=result, error=error)
        except TaskLost as lost:
            _log.warning("task_lost", task_id=str(self._claim.task.task_id), attempt=self.attempt, reason=str(lost))


def runnable_of(task: Task, registry: ToolRegistry, level: SecurityLevel) -> Runnable:
    """Return what runs a task at a level; the tools may have changed since it started. Raises ToolFailed."""
    spec = task.spec
    runnable = registry.find(spec.type, spec.action)
    if runnable is None:
        raise ToolFailed(f"there is no {spec.type} {spec.action!r} any more")
    if runnable.security_level.rank > level.rank:
        raise ToolFailed(f"{spec.action!r} needs the security_level {runnable.security_level} now, this is {level}")
    return runnable


# Tells of tasks: as SIGNAL QUERY packets with metadata.task.


def announce_with(emitter: Emitter, agent_id: str) -> Announce:
    """Build what emits an event to those that the task names, else as an INTRA_AGENT packet of the agent to itself.

    An INTRA_AGENT packet is logged by the orchestrator and handled by the agent's own SIGNAL handler. The packet has
    the trace of the one whose handler started the task, and the id that the event was given when it was kept: one that
    is emitted again is a repeat.
    """

    async def announce(event: TaskEvent) -> None:
        spec = event.spec
        reason = f"task {event.task_id} {event.document['status']}, event {event.number}"
        origin = spec.origin
        draft = Draft(
            payload=SignalPayload(signal=Signal.QUERY, reason=reason),
            to=spec.announce_to or agent_id,
            parent=None if origin is None else KnownParent(origin.packet_id, origin.root_packet_id),
            channel=Channel.INTER_AGENT if spec.announce_to else Channel.INTRA_AGENT,
            session_id=event.session_id,
            run_id=None if origin is None else origin.run_id,
            task_id=None if origin is None else origin.task_id,
            packet_id=event.packet_id,
            metadata={"task": event.document, PROVENANCE: {"security_level": spec.security_level.value}},
        )
        await emitter.emit(draft, None, 0)

    return announce
