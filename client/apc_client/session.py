"""One session, as the log tells it: its events, its state, and its result."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

import asyncpg
from pydantic import BaseModel

from apc_agents.patience import patiently
from apc_agents.typed import schema_of
from apc_client.errors import ResultUnusable, SessionHalted
from apc_contracts.errors import InputUnusable, PacketRefused
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, Result
from apc_contracts.session.document import SessionDocument
from apc_contracts.vocabulary import CommitmentLevel, PacketType, RunPhase
from apc_contracts.wire.parsing import parse_packet
from apc_log.heads import LogWatch
from apc_log.queries import SessionRow, get_session
from apc_log.queries.failures import halting_failure
from apc_log.queries.packets import BEGINNING, PacketRow, Position, list_agent_packets, opened_bodies
from apc_log.queries.surroundings import read_doubts

_PAGE = 100
_HALTED = "HALTED"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A packet of the session as the log has it.

    ```python
    from apc_client import SessionEvent


    def line(event: SessionEvent) -> str:
        why = "" if event.refusal is None else f": {event.refusal['message']}"
        return f"{event.judged_at:%H:%M:%S}Z {event.sender} {event.packet_type} {event.verdict}{why}"
    ```

    Attributes:
        packet_id: its id.
        packet_type: such as MESSAGE or DECISION.
        sender: the agent_id.
        recipients: agent ids, as the packet is addressed.
        verdict: accepted, refused or held.
        refusal_code: of a refused packet, else None.
        judged_at: when, in UTC.
        packet: the packet; None when its body is sealed and the key is not here, and when it cannot be read.
        refusal: why it was refused: code, rule, path, message; of a team's rule also requires, values and remedy.
        position: its place in the log; `ClientSession.follow` goes on behind one.
    """

    packet_id: UUID
    packet_type: str
    sender: str
    recipients: tuple[str, ...]
    verdict: str
    refusal_code: str | None
    judged_at: datetime
    packet: Packet | None
    refusal: Mapping[str, Any] | None = None
    position: Position = BEGINNING


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """Where a session stands after its last packet.

    ```python
    from apc_client import SessionStatus


    def line(status: SessionStatus) -> str:
        return f"{status.updated_at:%H:%M:%S}Z {status.run_id} {status.state} {status.halt_reason or ''}"
    ```

    Attributes:
        session_id: its id.
        run_id: the run that it belongs to.
        task_id: its task.
        opener: the agent_id that sent its START.
        state: of the contract, such as SESSION_OPEN, WORKING, CLOSED, HALTED.
        run_phase: the phase that its packets carry.
        is_terminal: whether it has ended.
        is_paused: whether it waits for RESUME.
        halt_reason: why it halted; None when it did not.
        updated_at: when it changed last, in UTC.
    """

    session_id: str
    run_id: str
    task_id: str
    opener: str
    state: str
    run_phase: RunPhase
    is_terminal: bool
    is_paused: bool
    halt_reason: str | None
    updated_at: datetime


class SessionRecord(Protocol):
    """A row of a session."""

    @property
    def session_id(self) -> str:
        """Its id."""

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""

    @property
    def updated_at(self) -> datetime:
        """When it changed last."""

    @property
    def document(self) -> SessionDocument:
        """The rest."""


def status_of(row: SessionRecord) -> SessionStatus:
    """Return what a row says."""
    document = row.document
    return SessionStatus(
        row.session_id,
        document.run_id,
        document.task_id,
        document.opener,
        document.state,
        document.run_phase,
        row.is_terminal,
        document.paused_at is not None,
        document.halt_reason,
        row.updated_at,
    )


class ClientSession:
    """A session that was started here or elsewhere. Everything it tells comes from the log.

    `Client.start` and `Client.session` make one.

    ```python
    import apc_client


    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> None:
        await ctx.complete(Answer(text="because"))


    team = Team("support", agents=[desk], entry="desk", input=Question)
    async with apc_client.connect() as bus:
        session: apc_client.ClientSession = await bus.start(team, Question(text="why"))
        seen = [(event.sender, event.packet_type, event.verdict) async for event in session.events()]
        assert ("desk", "DECISION", "accepted") in seen
        (first, *others) = await session.read()
        assert [one.packet_id for one in others] == [one.packet_id async for one in session.follow(first.position)]
        assert (await session.status()).state == "CLOSED"
        assert await session.has_ended()
        assert (await session.outcome()).content == {"text": "because"}
        assert await session.doubts() == ()
    ```

    Args:
        pool: connections to the log's database, for reading; it stays the caller's.
        session_id: its id.
        models: by schema, what `result` returns without a model.
        watch: tells that the log has grown; default its own. Those who follow many sessions share one.
        cancels: sends CANCEL with a reason; None = nobody does here.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        session_id: str,
        models: Mapping[str, type[BaseModel]] = MappingProxyType({}),
        *,
        watch: LogWatch | None = None,
        cancels: Callable[[SessionStatus, str], Awaitable[None]] | None = None,
    ) -> None:
        self.session_id = session_id
        self._pool = pool
        self._models = models
        self._watch = watch or LogWatch(pool)
        self._cancels = cancels

    def events(self) -> AsyncGenerator[SessionEvent, None]:
        """Yield what the log has of the session, from its first packet, as it gets it; ends when the session has."""
        return self.follow()

    async def follow(self, after: Position | None = None) -> AsyncGenerator[SessionEvent, None]:
        """Yield what the log gets of the session behind a position; ends when the session has.

        Args:
            after: the `position` of an event; None = from the first packet.
        """
        while True:
            seen = self._watch.ends
            page, is_over = await patiently(partial(self._page, after), "log")
            for row in page:
                yield _event(row)
            if page:
                after = page[-1].position
            elif is_over:
                return
            else:
                await self._growth(seen)

    async def read(self, after: Position | None = None) -> list[SessionEvent]:
        """Return what the log has of the session now, behind a position. Raises the errors of the database.

        Args:
            after: the `position` of an event; None = from the first packet.
        """
        found: list[SessionEvent] = []
        while (page := (await self._page(after))[0]) and (after := page[-1].position):
            found += map(_event, page)
        return found

    async def status(self) -> SessionStatus | None:
        """Return where the session stands; None when the log has none of this id. Raises the errors of the database."""
        row = await get_session(self._pool, self.session_id)
        return None if row is None else status_of(row)

    async def cancel(self, reason: str | None = None) -> None:
        """End the session: it halts, and its result is none; returns when the log has it.

        ```python
        import apc_client


        @desk.on(Question)
        async def wait(question: Question, ctx: HandlerContext) -> None:
            await ctx.ask("May I?", to=Role("lead"), timeout=timedelta(hours=8))


        team = Team("support", agents=[desk], entry="desk", input=Question)
        async with apc_client.connect(people={"ida": "lead"}) as bus:
            session = await bus.start(team, Question(text="why"))
            await session.cancel("asked by mistake")
            assert (await session.status()).halt_reason.startswith("CANCEL by ")
        ```

        Args:
            reason: for those who read the log; at most 8,192 characters.

        Raises:
            InputUnusable: the log has no such session, or this one came from no client that can send.
            SessionRefused: the gate refuses: it has ended, say.
            ServiceAway: orchestrator or persister do not answer.
            BusError: the broker does not take it.
        """
        status = await self.status()
        if status is None:
            raise InputUnusable(f"the log has no session {self.session_id!r}: `apc session list` shows them")
        if self._cancels is None:
            raise InputUnusable("who only reads the log cancels nothing: get the session from `Client.session`")
        await self._cancels(status, reason or "")

    async def has_ended(self) -> bool:
        """Return whether the session is closed or halted."""
        row = await patiently(lambda: get_session(self._pool, self.session_id), "log")
        return row is not None and row.is_terminal

    async def result(self, model: type[BaseModel] | None = None, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Wait until the session has closed, and return its result: what the decider gave to `ctx.complete`.

        Args:
            model: decorated with `@message`; default the one that the team has for the schema of the result.
            timeout: seconds; default as long as it takes.

        Raises:
            TimeoutError: the session goes on.
            SessionHalted: it ended without a result; says why.
            ResultUnusable: it has no result, or one of another schema.
            pydantic.ValidationError: the result does not fit the model.
        """
        sent = await self.outcome(timeout=timeout)
        if sent is None:
            raise ResultUnusable(f"session {self.session_id} closed without a result: its DONE carries none")
        model = model or self._models.get(sent.schema_id)
        if model is None or sent.schema_id != schema_of(model):
            wanted = "a model of the team" if model is None else model.__name__
            raise ResultUnusable(f"the result of session {self.session_id} is {sent.schema_id}, not {wanted}")
        return model.model_validate(sent.content, by_alias=True, by_name=False)

    async def outcome(self, *, timeout: float | None = None) -> Result | None:  # noqa: ASYNC109
        """Wait until the session has closed; return its result as it was sent. Raises as `result`.

        Args:
            timeout: seconds; default as long as it takes.
        """
        async with asyncio.timeout(timeout):
            document = (await self._end()).document
            if document.state == _HALTED:
                raise SessionHalted(self.session_id, document.halt_reason or "stopped", await self._failure(document))
            return await patiently(self._result, "log")

    async def doubts(self) -> tuple[str, ...]:
        """Return, in sentences, why what came of the session is open to doubt; nothing when there is no reason.

        A failed verification, a dead letter, a usage that was refused, a decision that rests on what was retracted.
        """
        return (await patiently(lambda: read_doubts(self._pool, self.session_id), "log")).sentences

    async def _end(self) -> SessionRow:
        """Wait until the session has ended; return its last state."""
        while True:
            seen = self._watch.ends
            row = await patiently(lambda: get_session(self._pool, self.session_id), "log")
            if row is not None and row.is_terminal:
                return row
            await self._growth(seen)

    async def _growth(self, seen: Mapping[int, int]) -> None:
        """Wait until the log ends elsewhere than `seen`; while the database is away it waits."""
        with self._watch.followed():
            await self._watch.until_changed(seen)

    async def _failure(self, document: SessionDocument) -> str:
        """Return what failed and halted the session, in a sentence; "" where it halted for another reason."""
        find = partial(halting_failure, self._pool, self.session_id, document.halt_reason, opens=True)
        failure = await patiently(find, "log")
        return "" if failure is None else failure.sentence

    async def _page(self, after: Position | None) -> tuple[list[PacketRow], bool]:
        """Return the packets behind a position, and whether the session had ended before they were read."""
        session = await get_session(self._pool, self.session_id)
        rows = await list_agent_packets(self._pool, session_id=self.session_id, after=after, limit=_PAGE)
        return list(await opened_bodies(self._pool, rows)), session is not None and session.is_terminal

    async def _result(self) -> Result | None:
        """Return what the last accepted DONE carries: it is the one that closed the session."""
        after, last = None, None
        while rows := await list_agent_packets(
            self._pool, session_id=self.session_id, packet_type=PacketType.DECISION, after=after, limit=_PAGE
        ):
            after = rows[-1].position
            for row in await opened_bodies(self._pool, [one for one in rows if one.verdict == "accepted"]):
                last = _done(row) or last
        return None if last is None else last.result


def _done(row: PacketRow) -> DecisionPayload | None:
    packet = _event(row).packet
    payload = None if packet is None else packet.payload_as(DecisionPayload)
    return payload if payload is not None and payload.commitment_level is CommitmentLevel.DONE else None


def _event(row: PacketRow) -> SessionEvent:
    try:
        packet = parse_packet(row.body)
    except PacketRefused:
        packet = None
    return SessionEvent(
        row.packet_id,
        row.packet_type,
        row.sender_agent_id,
        row.recipients,
        row.verdict,
        row.refusal_code,
        row.judged_at,
        packet,
        row.refusal,
        row.position,
    )
