"""The calls of one run of a handler: recorded as they are made, or answered from the records of an earlier run.

A record is found by its key, not by its place among the others: pipelines that run side by side make their calls in
another order in each run. The key is the call and what it was made with. Where several records have the same key, the
one counts that the same pipeline made after the same calls (`place`), else the oldest that is left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from apc_agents.errors import AgentError
from apc_agents.waiting.calls import NO_RECORDS, Call, RecordedCalls, Subject, digest_up_to
from apc_agents.waiting.recorded_outcomes import decode_error, decode_value
from apc_agents.waiting.records import MAX_WAITS, Asked, RecordedCall
from apc_agents.waiting.suspended import Suspended

ResultT = TypeVar("ResultT")
PATIENCE: Final = 5.0
"""Seconds, beyond those of the recorded runs, in which pipelines may come to the calls that are recorded of them."""


_last_call: ContextVar[Call | None] = ContextVar("apc_last_call", default=None)
"""The last call of ctx in this task; a task begins with that of the task that started it."""


class CallJournal:
    """The calls of one run.

    Args:
        entries: of an earlier run of the same handler; the last one is an answered wait.
        on_wait: told that the run has passed its wait number n, from 1.
        seconds: how long the recorded runs took.
    """

    def __init__(
        self,
        entries: list[RecordedCall] | None = None,
        on_wait: Callable[[int], None] = lambda _: None,
        seconds: float = 0.0,
    ) -> None:
        self._records = RecordedCalls(entries) if entries else NO_RECORDS
        self._on_wait = on_wait
        self._patience = PATIENCE + seconds
        self._task = _current_task()
        self._made: list[Call] = []
        self._beside = 0
        """Calls of other tasks than the handler's that are being made."""
        self._blocked: list[Call] = []
        """Calls of other tasks that are not recorded, while recorded waits are ahead."""
        self._waits = 0
        self._is_closing = False
        self._changed: asyncio.Event | None = None
        self.pending: RecordedCall | None = None
        """The wait that has ended this run."""
        self.divergence: str | None = None
        """Where the run left its records."""
        _last_call.set(None)

    @property
    def is_over(self) -> bool:
        """Whether every further call ends the run."""
        return self.pending is not None or self.divergence is not None

    @property
    def is_beside(self) -> bool:
        """Whether this is another task than the handler's."""
        return _current_task() is not self._task

    @property
    def place(self) -> str:
        """The same text in each run of the handler: a digest of the calls that came before in this pipeline."""
        return digest_up_to(self._previous())

    async def call(self, op: str, subject: Subject, make: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Make a call and record its outcome; or return, or raise, what is recorded, without making it."""
        call = self._enter(op, subject)
        if self._is_closing:
            await self._end()
        if self._records.are_left:
            entry = self._recorded(call) or await self._after_next_wait(call)
            if entry is not None:
                recorded: ResultT = self.replay(entry)
                return recorded
        self._made.append(call)
        self._beside += call.is_beside
        try:
            call.value = value = await make()
        except Exception as error:
            call.error = error
            call.is_done = True
            raise
        else:
            call.is_done = True
            return value
        finally:
            self._beside -= call.is_beside
            self._tell()

    def note(self, op: str, subject: Subject, make: Callable[[], ResultT]) -> ResultT:
        """Record a call like `call`, for a function that is not awaited."""
        call = self._enter(op, subject)
        if self._records.are_left and (entry := self._recorded(call, is_noted=True)) is not None:
            recorded: ResultT = self.replay(entry)
            return recorded
        self._made.append(call)
        try:
            call.value = make()
        except Exception as error:
            call.error = error
            raise
        finally:
            call.is_done = True
        value: ResultT = call.value
        return value

    def note_error(self, op: str, subject: Subject, error: Exception) -> None:
        """Record a call that raised before it had any effect; `next_recorded` has entered it."""
        call = _last_call.get()
        if call is None or call.journal is not self or (call.op, call.subject) != (op, subject):
            call = self._enter(op, subject)
        call.error, call.is_done = error, True
        self._made.append(call)

    def next_recorded(self, op: str, subject: Subject) -> RecordedCall | None:
        """Return the record of a call; None when it is none of the recorded ones. Raises Suspended."""
        call = self._enter(op, subject)
        return self._recorded(call) if self._records.are_left else None

    def pass_wait(self, entry: RecordedCall) -> list[Asked]:
        """Pass an answered wait; return its question with the answers."""
        self._waits += 1
        self._records.pass_wait()
        self._on_wait(self._waits)
        self._tell()
        return entry.asked

    async def caught_up(self) -> None:
        """Let the pipelines beside the handler come to the calls that are recorded of them before the next wait."""
        try:
            async with asyncio.timeout(self._patience):
                while self._records.are_left_beside and not self.is_over:
                    await self._change()
        except TimeoutError:
            self._give_up()

    async def close(self) -> None:
        """Let the pipelines beside the handler end the calls that they are making, and begin no others."""
        self._is_closing = True
        while self._beside:
            await self._change()

    def wait(self, op: str, subject: Subject, asked: list[Asked]) -> Suspended:
        """End this run with a wait; return what the handler is to be left with."""
        self.pending = RecordedCall(op, subject(), asked=asked)
        self._tell()
        return Suspended()

    def check_room(self) -> None:
        """Raise AgentError when the run has waited too often."""
        if self._waits >= MAX_WAITS:
            raise AgentError(f"a handler run waits at most {MAX_WAITS} times: end it, and go on with another packet")

    def diverge(self, where: str) -> None:
        """Note that this run is another one than the recorded."""
        self.divergence = self.divergence or where
        self._tell()

    def finish(self) -> None:
        """Note that the handler has ended; with records left it has diverged."""
        _last_call.set(None)
        if not self.is_over and (left := self._records.first_left(None)) is not None:
            number, entry = left
            self.diverge(f"the handler ended before call {number}, ctx.{entry.op}({entry.subject})")

    def entries(self) -> list[RecordedCall]:
        """Return the records up to the wait that has ended this run. Raises AgentError for what is no record."""
        assert self.pending is not None, "a run without a wait keeps no records"
        return [*self._records.entries, *(call.entry() for call in self._made), self.pending]

    def replay(self, entry: RecordedCall) -> Any:
        """Return, or raise, what is recorded of a call."""
        outcome = entry.outcome or {}
        if "raised" in outcome:
            raise decode_error(entry.op, outcome["raised"])
        return decode_value(entry.op, outcome.get("returned"))

    def _enter(self, op: str, subject: Subject) -> Call:
        """Return the call that begins in this task. Raises Suspended."""
        if self.is_over:
            raise Suspended
        call = Call(self, op, subject, self._previous(), is_beside=self.is_beside)
        _last_call.set(call)
        return call

    def _previous(self) -> Call | None:
        last = _last_call.get()
        return last if last is not None and last.journal is self else None

    def _recorded(self, call: Call, *, is_noted: bool = False) -> RecordedCall | None:
        """Return the record of a call.

        None when there is none, after the last recorded wait or, for the time being, in another task than the
        handler's. Raises Suspended: the handler itself makes another call than it did.
        """
        entry = self._records.take(call, is_noted=is_noted)
        if entry is not None and not (entry.is_wait and self._records.are_left_before_wait):
            self._tell()
            return entry
        if entry is None and (self._records.are_waits_passed or call.is_beside):
            return None
        self._diverge_at(call)
        raise Suspended

    async def _after_next_wait(self, call: Call) -> RecordedCall | None:
        """Hold a call that is not recorded so far until the handler has passed its next wait; return its record.

        It was made while the handler waited, or after that: then there is a record, or, after the last recorded wait,
        None. Or it is another call than this pipeline made, and the handler never comes to its wait.

        Raises:
            Suspended: the run is over.
        """
        entry = None
        self._blocked.append(call)
        try:
            async with asyncio.timeout(self._patience):
                while entry is None and not self._records.are_waits_passed and not self.is_over:
                    await self._change()
                    entry = self._records.take(call)
        except TimeoutError:
            self._give_up()
        finally:
            self._blocked.remove(call)
        if self.is_over:
            raise Suspended
        return entry

    async def _end(self) -> None:
        """Wait until the run is over. Raises Suspended."""
        while not self.is_over:
            await self._change()
        raise Suspended

    def _give_up(self) -> None:
        """Say where a pipeline makes another call than it did: the handler does not come to its wait."""
        if self._blocked:
            self._diverge_at(self._blocked[0])

    def _diverge_at(self, call: Call) -> None:
        is_now = f"ctx.{call.op}({call.subject()})"
        left = self._records.first_left(call.place)
        if left is None:
            self.diverge(f"{is_now} is not recorded before the wait that was answered")
        else:
            number, entry = left
            self.diverge(f"call {number} was ctx.{entry.op}({entry.subject}) and is now {is_now}")

    async def _change(self) -> None:
        """Wait until something is recorded, replayed, passed or over."""
        self._changed = self._changed or asyncio.Event()
        await self._changed.wait()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


def _current_task() -> "asyncio.Task[Any] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread of ctx.once
        return None
