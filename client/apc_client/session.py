"""One session, as the log tells it: its events, and its result."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import asyncpg
from pydantic import BaseModel

from apc_agents.patience import patiently
from apc_agents.typed import schema_of
from apc_client.errors import ResultUnusable, SessionHalted
from apc_client.sending import until
from apc_contracts.errors import PacketRefused
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, Result
from apc_contracts.vocabulary import CommitmentLevel, PacketType
from apc_contracts.wire.parsing import parse_packet
from apc_log.queries import SessionRow, get_session
from apc_log.queries.packets import PacketRow, Position, list_agent_packets, opened_bodies
from apc_log.queries.surroundings import read_doubts

PAUSE_SECONDS: Final = 0.05
"""Between two looks at the log."""
_PAGE = 100
_HALTED = "HALTED"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A packet of the session as the log has it.

    ```python
    from apc_client import SessionEvent


    def line(event: SessionEvent) -> str:
        why = "" if event.refusal is None else f": {event.refusal['message']}"
        return f"{event.judged_at:%H:%M:%S} {event.sender} {event.packet_type} {event.verdict}{why}"
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
        assert await session.has_ended()
        assert (await session.outcome()).content == {"text": "because"}
        assert await session.doubts() == ()
    ```

    Args:
        pool: connections to the log's database, for reading; it stays the caller's.
        session_id: its id.
        models: by schema, what `result` returns without a model.
    """

    def __init__(
        self, pool: asyncpg.Pool, session_id: str, models: Mapping[str, type[BaseModel]] = MappingProxyType({})
    ) -> None:
        self.session_id = session_id
        self._pool = pool
        self._models = models

    async def events(self) -> AsyncIterator[SessionEvent]:
        """Yield what the log has of the session, from its first packet, as it gets it; ends when the session has."""
        after: Position | None = None
        while True:
            page, is_over = await patiently(partial(self._page, after), "log")
            for row in page:
                yield _event(row)
            if page:
                after = page[-1].position
            elif is_over:
                return
            else:
                await asyncio.sleep(PAUSE_SECONDS)

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
        ends: list[SessionRow] = []

        async def is_over() -> bool:
            row = await get_session(self._pool, self.session_id)
            if row is not None and row.is_terminal:
                ends.append(row)
            return bool(ends)

        async with asyncio.timeout(timeout):
            await until(is_over, None, pause_seconds=PAUSE_SECONDS)
            document = ends[0].document
            if document.state == _HALTED:
                raise SessionHalted(self.session_id, document.halt_reason or "stopped")
            return await patiently(self._result, "log")

    async def doubts(self) -> tuple[str, ...]:
        """Return, in sentences, why what came of the session is open to doubt; nothing when there is no reason.

        A failed verification, a dead letter, a usage that was refused, a decision that rests on what was retracted.
        """
        return (await patiently(lambda: read_doubts(self._pool, self.session_id), "log")).sentences

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
    )
