"""The calls of one run of a handler: recorded as they are made, or answered from the records of an earlier run."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from apc_agents.errors import AgentError
from apc_agents.waiting.recorded_outcomes import decode_error, decode_value, encode_error, encode_value
from apc_agents.waiting.records import MAX_WAITS, Asked, RecordedCall
from apc_agents.waiting.suspended import Suspended

ResultT = TypeVar("ResultT")
Subject = Callable[[], str]
"""Says what a call was made with; asked only when the handler waits, or repeats its records."""


class _Call:
    """A call of this run, with its outcome as it is; encoded only when the handler waits."""

    __slots__ = ("error", "is_done", "op", "subject", "value")

    def __init__(self, op: str, subject: Subject) -> None:
        self.op = op
        self.subject = subject
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None

    def entry(self) -> RecordedCall:
        if not self.is_done:
            raise AgentError(f"ctx.{self.op} had not returned when the handler began to wait: await it first")
        if self.error is not None:
            return RecordedCall(self.op, self.subject(), {"raised": encode_error(self.op, self.error)})
        return RecordedCall(self.op, self.subject(), {"returned": encode_value(self.op, self.value)})


class CallJournal:
    """The calls of one run.

    Args:
        entries: of an earlier run of the same handler; the last one is an answered wait.
        on_wait: told that the run has passed its wait number n, from 1.
    """

    def __init__(
        self, entries: list[RecordedCall] | None = None, on_wait: Callable[[int], None] = lambda _: None
    ) -> None:
        self._recorded = entries or []
        self._on_wait = on_wait
        self._made: list[_Call] = []
        self._position = 0
        self._waits = 0
        self.pending: RecordedCall | None = None
        """The wait that has ended this run."""
        self.divergence: str | None = None
        """Where the run left its records."""

    @property
    def is_over(self) -> bool:
        """Whether every further call ends the run."""
        return self.pending is not None or self.divergence is not None

    async def call(self, op: str, subject: Subject, make: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Make a call and record its outcome; or return, or raise, what is recorded, without making it."""
        entry = self.next_recorded(op, subject)
        if entry is not None:
            recorded: ResultT = self.replay(entry)
            return recorded
        call = self._begin(op, subject)
        try:
            value = await make()
        except Exception as error:
            call.error, call.is_done = error, True
            raise
        call.value, call.is_done = value, True
        return value

    def note(self, op: str, subject: Subject, make: Callable[[], ResultT]) -> ResultT:
        """Record a call like `call`, for a function that is not awaited."""
        entry = self.next_recorded(op, subject)
        if entry is not None:
            recorded: ResultT = self.replay(entry)
            return recorded
        call = self._begin(op, subject)
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
        """Record a call that raised before it had any effect."""
        call = self._begin(op, subject)
        call.error, call.is_done = error, True

    def next_recorded(self, op: str, subject: Subject) -> RecordedCall | None:
        """Return the record of the next call; None when the records have ended. Raises Suspended."""
        if self.is_over:
            raise Suspended
        if self._position >= len(self._recorded):
            return None
        entry = self._recorded[self._position]
        found = subject()
        if (entry.op, entry.subject) != (op, found):
            number = self._position + 1
            self.diverge(f"call {number} was ctx.{entry.op}({entry.subject}) and is now ctx.{op}({found})")
            raise Suspended
        self._position += 1
        return entry

    def pass_wait(self, entry: RecordedCall) -> list[Asked]:
        """Pass an answered wait; return its question with the answers."""
        self._waits += 1
        self._on_wait(self._waits)
        return entry.asked

    def wait(self, op: str, subject: Subject, asked: list[Asked]) -> Suspended:
        """End this run with a wait; return what the handler is to be left with."""
        self.pending = RecordedCall(op, subject(), asked=asked)
        return Suspended()

    def check_room(self) -> None:
        """Raise AgentError when the run has waited too often."""
        if self._waits >= MAX_WAITS:
            raise AgentError(f"a handler run waits at most {MAX_WAITS} times: end it, and go on with another packet")

    def diverge(self, where: str) -> None:
        """Note that this run is another one than the recorded."""
        self.divergence = where

    def finish(self) -> None:
        """Note that the handler has ended; with records left it has diverged."""
        if not self.is_over and self._position < len(self._recorded):
            entry = self._recorded[self._position]
            self.diverge(f"the handler ended before call {self._position + 1}, ctx.{entry.op}({entry.subject})")

    def entries(self) -> list[RecordedCall]:
        """Return the records up to the wait that has ended this run. Raises AgentError for what is no record."""
        assert self.pending is not None, "a run without a wait keeps no records"
        return [*self._recorded, *(call.entry() for call in self._made), self.pending]

    def replay(self, entry: RecordedCall) -> Any:
        """Return, or raise, what is recorded of a call."""
        outcome = entry.outcome or {}
        if "raised" in outcome:
            raise decode_error(entry.op, outcome["raised"])
        return decode_value(entry.op, outcome.get("returned"))

    def _begin(self, op: str, subject: Subject) -> _Call:
        call = _Call(op, subject)
        self._made.append(call)
        return call
