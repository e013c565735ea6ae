"""What ends a run of a handler that waits, whatever the handler catches."""

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeVar
from uuid import UUID

import orjson

from apc_agents.effects import EffectId
from apc_agents.errors import AgentError
from apc_contracts.agent import AgentContext
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import Right, RunPhase
from apc_contracts.wire.parsing import parse_packet, seal


class Suspended(BaseException):
    """Raised in a handler whose run is over: it waits for an answer, or it did not repeat its records.

    A handler has nothing to do with it: it is no Exception, and what the handler returns after it is ignored.
    """


# Bars waits where a handler run could not be repeated from its records.

_barred: Final[ContextVar[str | None]] = ContextVar("apc_waits_barred", default=None)


@contextmanager
def no_waits(remedy: str) -> Iterator[None]:
    """Refuse every wait within, in this task and those that it starts; `remedy` says what to do instead."""
    token = _barred.set(remedy)
    try:
        yield
    finally:
        _barred.reset(token)


def barred() -> str | None:
    """Return the remedy where waits are barred; None where a handler may wait."""
    return _barred.get()


# The outcomes of a handler's calls as JSON: what a call returned, or what it raised.

_PACKET, _EFFECT, _TIME = "$packet", "$effect", "$time"

_OF_THE_HANDLER = frozenset({"once", "settle"})
"""Calls that return what the handler itself has made."""

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "snapshot": AgentContext.model_validate,
    "run_phase": RunPhase,
    "session_state": lambda found: None if found is None else SessionState.model_validate_json(orjson.dumps(found)),
    "sender_rights": lambda found: frozenset(map(Right, found)),
}


def encode_value(op: str, value: Any) -> Any:
    """Return what a call returned as JSON. Raises AgentError for what is no JSON."""
    if isinstance(value, Packet):
        return {_PACKET: seal(value).body.decode()}
    if isinstance(value, AgentContext | SessionState):
        return value.model_dump(mode="json")
    if isinstance(value, frozenset):
        return sorted(value)
    return _json(op, value)


def decode_value(op: str, value: Any) -> Any:
    """Return what a recorded call returned."""
    if op not in _OF_THE_HANDLER and isinstance(value, dict) and value.keys() == {_PACKET}:
        return parse_packet(value[_PACKET].encode())
    decode = _DECODERS.get(op)
    return value if decode is None else decode(value)


def encode_error(op: str, error: Exception) -> dict[str, Any]:
    """Return what a call raised as JSON. Raises AgentError when it holds something that is no JSON."""
    kind = type(error)
    held = {name: _encode_held(op, value) for name, value in vars(error).items() if not name.startswith("_")}
    return {"module": kind.__module__, "name": kind.__qualname__, "args": _json(op, list(error.args)), "held": held}


def decode_error(op: str, raised: dict[str, Any]) -> Exception:
    """Return what a recorded call raised; an AgentError with its text when its class is gone."""
    kind: Any = sys.modules.get(raised["module"])
    for name in raised["name"].split("."):
        kind = getattr(kind, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return AgentError(f"{raised['name']}: {raised['args']}")
    error = kind.__new__(kind)
    error.args = tuple(raised["args"])
    for name, value in raised["held"].items():
        setattr(error, name, _decode_held(op, value))
    return error


def _encode_held(op: str, value: Any) -> Any:
    """Return what an error says of itself as JSON, so that it comes back as it was."""
    if isinstance(value, EffectId):
        return {_EFFECT: [str(value.packet_id), value.agent_id, value.key]}
    if isinstance(value, datetime):
        return {_TIME: value.isoformat()}
    return encode_value(op, value)


def _decode_held(op: str, value: Any) -> Any:
    match value:
        case {"$effect": [packet_id, agent_id, key]} if len(value) == 1:
            return EffectId(UUID(packet_id), agent_id, key)
        case {"$time": str(moment)} if len(value) == 1:
            return datetime.fromisoformat(moment)
    return decode_value(op, value)


def _json(op: str, value: Any) -> Any:
    try:
        return orjson.loads(orjson.dumps(value))
    except TypeError as error:
        raise AgentError(
            f"the outcome of ctx.{op} cannot be recorded, so the handler cannot wait after it: {error}"
        ) from error


# What a wait keeps of its handler's run: the packet, the calls and their outcomes, the states, what is asked.

MAX_WAITS = 64
MAX_RECORD_BYTES = 1 << 20


@dataclass(slots=True)
class Asked:
    """An ASK of a wait; `end` is its answer, or what it raised, as JSON; None while it is open.

    Those of one call have the same `group`: `ctx.ask(approvals=n)` makes n.
    """

    packet: Packet
    ordinal: int
    end: dict[str, Any] | None = None
    group: int = 0


@dataclass(slots=True)
class RecordedCall:
    """One call of a run: its name, what it was called with, and its outcome as JSON.

    A wait has `asked` instead of an outcome. A call of a task that the handler has started has a `place`, which tells
    the pipelines of a handler apart (`CallJournal`).
    """

    op: str
    subject: str
    outcome: dict[str, Any] | None = None
    asked: list[Asked] = field(default_factory=list)
    place: str | None = None

    @property
    def is_wait(self) -> bool:
        """Whether the handler waited here."""
        return bool(self.asked)


@dataclass(slots=True)
class WaitRecord:
    """A handler run that waits, or goes on. Its key is the packet that started it."""

    packet: Packet
    rights: tuple[str, ...]
    entries: list[RecordedCall] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    """ctx.state as each part of the run found it: before the first wait, between the waits."""
    tokens: int = 0
    cost: float = 0.0
    """What was reported of the run so far."""
    ack_ordinal: int | None = None
    """Of the ACK at the first wait; None when the packet asks for none."""
    seconds: float = 0.0
    """How long the runs took so far."""

    @property
    def asked(self) -> list[Asked]:
        """The ASKs of the wait that is open."""
        return self.entries[-1].asked

    def find(self, ask: UUID) -> Asked | None:
        """Return an ASK of the open wait."""
        return next((one for one in self.asked if one.packet.packet_id == ask), None)

    @property
    def is_answered(self) -> bool:
        """Whether the run can go on."""
        return all(self.has_ended(one.group) for one in self.asked)

    def has_ended(self, group: int) -> bool:
        """Return whether a call has its result: all its ASKs are answered, or one of them otherwise than approved."""
        ends = [one.end for one in self.asked if one.group == group]
        return None not in ends or any(end is not None and end.get("outcome") != AnswerOutcome.APPROVED for end in ends)

    def encode(self) -> bytes:
        """Return the JSON bytes. Raises AgentError beyond the bound."""
        body = orjson.dumps(
            {
                "packet": _text(self.packet),
                "rights": self.rights,
                "entries": [_entry_document(entry) for entry in self.entries],
                "states": self.states,
                "usage": [self.tokens, self.cost],
                "ack": self.ack_ordinal,
                "seconds": self.seconds,
            }
        )
        if len(body) > MAX_RECORD_BYTES:
            raise AgentError(
                f"the records of this handler run have {len(body)} bytes, the limit is {MAX_RECORD_BYTES}: "
                "wait earlier, or keep large values in ctx.artifacts"
            )
        return body


def decode_record(body: bytes) -> WaitRecord:
    """Return the record in JSON bytes."""
    found = orjson.loads(body)
    tokens, cost = found["usage"]
    return WaitRecord(
        packet=_packet(found["packet"]),
        rights=tuple(found["rights"]),
        entries=[_entry(one) for one in found["entries"]],
        states=found["states"],
        tokens=tokens,
        cost=cost,
        ack_ordinal=found["ack"],
        seconds=found.get("seconds", 0.0),
    )


def _entry_document(entry: RecordedCall) -> dict[str, Any]:
    document: dict[str, Any] = {"op": entry.op, "subject": entry.subject}
    if entry.is_wait:
        return document | {"asked": [_asked_document(one, at) for at, one in enumerate(entry.asked)]}
    if entry.place is not None:
        document["place"] = entry.place
    return document | {"outcome": entry.outcome}


def _asked_document(asked: Asked, at: int) -> list[Any]:
    document = [_text(asked.packet), asked.ordinal, asked.end]
    return document if asked.group == at else [*document, asked.group]


def _asked(document: list[Any], at: int) -> Asked:
    body, ordinal, end, *group = document
    return Asked(_packet(body), ordinal, end, *(group or [at]))


def _entry(document: dict[str, Any]) -> RecordedCall:
    asked = [_asked(one, at) for at, one in enumerate(document.get("asked", ()))]
    return RecordedCall(document["op"], document["subject"], document.get("outcome"), asked, document.get("place"))


def _text(packet: Packet) -> str:
    return seal(packet).body.decode()


def _packet(text: str) -> Packet:
    return parse_packet(text.encode())


# The calls of one run of a handler, and the records of earlier runs, which are found by what was called.

Subject = Callable[[], str]
"""Says what a call was made with; asked only when the handler waits, or repeats its records."""


class Call:
    """A call of this run, with its outcome as it is; encoded only when the handler waits."""

    __slots__ = ("_digest", "error", "is_beside", "is_done", "journal", "op", "previous", "subject", "value")

    def __init__(self, journal: object, op: str, subject: Subject, previous: "Call | None", *, is_beside: bool) -> None:
        self.journal = journal
        self.op = op
        self.subject = subject
        self.previous = previous
        """The last call before this one in the same task, or in those that started it."""
        self.is_beside = is_beside
        """Made in a task that the handler has started, not in the handler itself."""
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None
        self._digest: str | None = None

    @property
    def place(self) -> str | None:
        """What tells the pipelines of a handler apart: a digest of the calls before this one."""
        return digest_up_to(self.previous) if self.is_beside else None

    def digest(self) -> str | None:
        """Return the digest of this call and those before it; None when nobody has asked for it yet."""
        return self._digest

    def digest_after(self, before: str) -> str:
        """Return the digest of this call after those with the digest `before`."""
        said = f"{before}/{self.op}/{self.subject()}"
        self._digest = sha256(said.encode()).hexdigest()[:16]
        return self._digest

    def entry(self) -> RecordedCall:
        """Return the record. Raises AgentError for a call that has not returned, and for what is no JSON."""
        if not self.is_done:
            raise AgentError(f"ctx.{self.op} had not returned when the handler began to wait: await it first")
        if self.error is not None:
            outcome = {"raised": encode_error(self.op, self.error)}
        else:
            outcome = {"returned": encode_value(self.op, self.value)}
        return RecordedCall(self.op, self.subject(), outcome, place=self.place)


class RecordedCalls:
    """The records of earlier runs, and which of them this run has come to."""

    def __init__(self, entries: list[RecordedCall]) -> None:
        self.entries = entries
        self._left = set(range(len(entries)))
        self._by_key: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for number, entry in enumerate(entries):
            self._by_key[entry.op, entry.subject].append(number)
        self._ahead = [number for number, entry in enumerate(entries) if entry.is_wait]
        """The waits that are not passed."""

    @property
    def are_left(self) -> bool:
        """Whether this run has not come to all of them."""
        return bool(self._left)

    @property
    def are_waits_passed(self) -> bool:
        """Whether no recorded wait is ahead."""
        return not self._ahead

    @property
    def are_left_before_wait(self) -> bool:
        """Whether calls are left that were made before the next wait."""
        return bool(self._left) and bool(self._ahead) and min(self._left) < self._ahead[0]

    @property
    def are_left_beside(self) -> bool:
        """Whether all that is left before the next wait was made beside the handler, and something is."""
        end = self._ahead[0] if self._ahead else 0
        left = [number for number in self._left if number < end]
        return bool(left) and all(self.entries[number].place is not None for number in left)

    def take(self, call: Call, *, is_noted: bool = False) -> RecordedCall | None:
        """Return the record of a call that was made before the next wait, or is that wait; it is left no more.

        Args:
            is_noted: it is not awaited, and cannot be held until the wait is passed: beside the handler it may be one
                that an earlier run came to after the wait.
        """
        numbers = self._by_key.get((call.op, call.subject()), [])
        end = self._ahead[0] if self._ahead else len(self.entries)
        reaches_behind = is_noted and call.is_beside
        first = None
        for number in numbers:
            entry = self.entries[number]
            if (number > end and not reaches_behind) or (entry.is_wait and call.is_beside):
                break
            if number > end and entry.place is None:  # the handler's own
                continue
            first = number if first is None else first
            if entry.place == call.place:
                first = number
                break
        if first is None:
            return None
        numbers.remove(first)
        if not self.entries[first].is_wait:
            self._left.discard(first)
        return self.entries[first]

    def pass_wait(self) -> None:
        """Pass the next wait."""
        if self._ahead:
            self._left.discard(self._ahead.pop(0))

    def first_left(self, place: str | None) -> tuple[int, RecordedCall] | None:
        """Return the first record that is left, with its number from 1; if there is one, of this place."""
        left = sorted(self._left)
        if not left:
            return None
        number = next((one for one in left if place is not None and self.entries[one].place == place), left[0])
        return number + 1, self.entries[number]


NO_RECORDS = RecordedCalls([])


def digest_up_to(call: Call | None) -> str:
    """Return the digest of a call and those before it; not recursive, for there may be thousands."""
    calls = []
    while call is not None and call.digest() is None:
        calls.append(call)
        call = call.previous
    digest = "" if call is None else str(call.digest())
    for one in reversed(calls):
        digest = one.digest_after(digest)
    return digest


# The calls of one run of a handler: recorded as they are made, or answered from the records of an earlier run.
#
# A record is found by its key, not by its place among the others: pipelines that run side by side make their calls in
# another order in each run. The key is the call and what it was made with. Where several records have the same key, the
# one counts that the same pipeline made after the same calls (`place`), else the oldest that is left.

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
        self._ordinal = 0
        self._origins = 0
        self._repeats: Counter[str] = Counter()
        """How often the same was said in tasks that the handler has started."""
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

    def next_ordinal(self) -> int:
        """Return the number from which the id of the handler's next packet follows."""
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        return ordinal

    def ordinal_of(self, subject: Subject) -> int:
        """Return the number from which the id of an emission follows; the same when the handler runs again.

        The handler itself counts. Tasks that it has started emit in another order in each run, so their numbers
        follow from what they say: beyond all that are counted, and within what JSON holds.
        """
        if not self.is_beside:
            return self.next_ordinal()
        said = subject()
        self._repeats[said] += 1
        digest = sha256(f"{said}/{self._repeats[said]}".encode()).digest()
        return int.from_bytes(digest[:6], "big") | 1 << 48

    def next_origin(self) -> str:
        """Return a name that this run has not had, and that a run which repeats it makes again, in the same order."""
        if self.is_beside:
            name = f"beside/{self.place}"
            self._repeats[name] += 1
            return f"{name}/{self._repeats[name]}"
        self._origins += 1
        return str(self._origins)

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

    async def waiting(self, op: str, subject: Subject, prepare: Callable[[], Awaitable[list[Asked]]]) -> Suspended:
        """End this run with a wait for what `prepare` asks; return what the handler is to be left with.

        Raises what `prepare` raises: the call is recorded with it, and the run goes on.
        """
        try:
            asked = await prepare()
        except Exception as error:
            self.note_error(op, subject, error)
            raise
        await self.close()
        return self.wait(op, subject, asked)

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

    def passed_wait(self, op: str, subject: Subject) -> list[Asked] | None:
        """Return the questions of an answered wait, with the answers; None for a wait that is not recorded.

        Raises what is recorded of one that raised before it had any effect; Suspended.
        """
        entry = self.next_recorded(op, subject)
        if entry is None:
            return None
        if not entry.is_wait:
            self.replay(entry)
        self._waits += 1
        self._ordinal = max(self._ordinal, entry.asked[-1].ordinal + 2)  # the last one's, and that of the ACK
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

    def check_may_wait(self, *, is_within: bool) -> None:
        """Raise AgentError where the handler cannot wait; `is_within` says that it is making an effect."""
        if (remedy := barred()) is not None:
            raise AgentError(remedy)
        if self.is_beside or is_within:
            raise AgentError("a wait stands in the handler itself: await it outside asyncio.gather, tasks and ctx.once")
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
