"""Starts sessions of teams, as a registered agent with the right `operate`; under a key each session once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
from pydantic import BaseModel, JsonValue

from apc_agents.emission import Builder, Draft, KnownParent
from apc_agents.keys import AgentKey
from apc_agents.running.delivery import KnownSessions
from apc_agents.team import Team
from apc_agents.typed import payload_of
from apc_bus.port import Bus
from apc_client.errors import KeyConflict, SessionRefused, StartUnconfirmed
from apc_client.run_names import RunNames, TagValue
from apc_client.sending import PATIENCE, AnswerForm, GateAnswer, answer_over, send_opening, send_packet, until
from apc_client.session import ClientSession, SessionStatus, status_of
from apc_contracts.errors import InputUnusable, PacketRefused, ServiceAway
from apc_contracts.identity.ids import keyed_id, new_packet_id
from apc_contracts.identity.registry import ANY_SCHEMA, Registration
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.packet import Actor, Packet
from apc_contracts.payloads.by_type import AnswerOutcome, MessagePayload, SignalPayload
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase, Signal
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.parsing import parse_packet
from apc_log.body_encryption import is_sealed
from apc_log.heads import LogWatch
from apc_log.queries import get_session
from apc_log.queries.packets import PacketRow, list_agent_packets, opened_bodies
from apc_log.queries.questions import QuestionRow, list_questions
from apc_log.queries.session_pages import OpenerFilters, count_of_opener, has_other_opener, sessions_of_opener

# A start under a key: its ids follow from the key, and a repeated one finds the session of the first.
#
# A start can come to nothing: its START is refused, or its session ends before it has work. The key then names a next
# attempt, with its own ids. An attempt that came to nothing stays so, and the next one begins only then: so two clients
# that repeat a start at once begin the same attempt, and the gate keeps one of both.


class Attempt(NamedTuple):
    """The ids of one attempt at a start."""

    session_id: str
    start_id: UUID
    input_id: UUID


class FoundStart(NamedTuple):
    """The newest attempt, and the START in the log; done = the session has its input."""

    attempt: Attempt
    start: PacketRow | None
    is_done: bool


@dataclass(frozen=True, slots=True)
class KeyedStart:
    """A key of an owner, and the input that its caller wants to send."""

    owner: str
    team: str
    key: str
    payload: MessagePayload

    def attempt(self, number: int) -> Attempt:
        """Return the ids of an attempt; the first is 0."""
        ids = [
            keyed_id(self.owner, self.team, self.key, f"{what}.{number}" if number else what)
            for what in ("session", "start", "input")
        ]
        return Attempt(str(ids[0]), ids[1], ids[2])

    async def find(self, pool: asyncpg.Pool, agent_id: str, user: str) -> FoundStart:
        """Return the attempt that goes on: its session has the input, or this agent has to send input or both.

        The START may be that of another client of the same broker user, whose run had the key before. It gets some
        seconds for its input, since nobody else may send it.

        Raises:
            KeyConflict: the key was used for another input, by another broker user, or by a run that ended too early.
            InputUnusable: the input cannot be decrypted.
        """
        attempt = self.attempt(0)
        start = await _logged(pool, attempt.session_id, attempt.start_id)
        if start is not None and await self._came_to_nothing(pool, attempt, start):
            attempt, start = await self._newest(pool)
        if start is None:
            return FoundStart(attempt, None, False)
        return FoundStart(attempt, start, await self._has_input(pool, attempt, start, agent_id, user))

    async def check(self, pool: asyncpg.Pool, attempt: Attempt, sent: Packet) -> None:
        """Check that the input that the session has been given is the one that was sent, or says the same.

        Another process of this agent may have been faster: what was accepted under the ids is then what it sent. The
        time at which a packet was made tells both apart, also while bodies are encrypted.

        Raises as `find`.
        """
        row = await _admitted(pool, attempt.session_id, attempt.input_id)
        if row is not None and row.created_at != sent.created_at:
            await self._compare(pool, attempt, row, sent.sender.agent_id)

    async def _newest(self, pool: asyncpg.Pool) -> tuple[Attempt, PacketRow | None]:
        """Return the attempt after all that came to nothing; it was begun or not. The first one came to nothing."""
        begun, unknown = 0, 1
        while await self._start(pool, unknown) is not None:
            begun, unknown = unknown, 2 * unknown
        while unknown - begun > 1:
            middle = (begun + unknown) // 2
            if await self._start(pool, middle) is None:
                unknown = middle
            else:
                begun = middle
        start = await self._start(pool, begun)
        if start is None or await self._came_to_nothing(pool, self.attempt(begun), start):
            return self.attempt(begun + 1), None
        return self.attempt(begun), start

    async def _start(self, pool: asyncpg.Pool, number: int) -> PacketRow | None:
        attempt = self.attempt(number)
        return await _logged(pool, attempt.session_id, attempt.start_id)

    async def _came_to_nothing(self, pool: asyncpg.Pool, attempt: Attempt, start: PacketRow) -> bool:
        """Return whether the session was never opened, or has ended without its input."""
        if start.verdict == "refused":
            return True
        session = await get_session(pool, attempt.session_id)
        if session is None or not session.is_terminal:
            return False
        return await _admitted(pool, attempt.session_id, attempt.input_id) is None

    async def _has_input(
        self, pool: asyncpg.Pool, attempt: Attempt, start: PacketRow, agent_id: str, user: str
    ) -> bool:
        opener = start.sender_agent_id
        if not is_by(start, agent_id, user):
            raise self._conflict(attempt, f"by {opener}, which this broker user does not speak for")
        rows: list[PacketRow] = []

        async def has_input() -> bool:
            row = await _admitted(pool, attempt.session_id, attempt.input_id)
            rows[:] = [row] if row is not None else []
            return bool(rows)

        try:
            if not await has_input() and opener != agent_id:
                await until(has_input, PATIENCE)
        except TimeoutError:
            how = f"by {opener}, whose run ended before it sent the input: try again when the session has halted"
            raise self._conflict(attempt, how) from None
        if rows:
            await self._compare(pool, attempt, rows[0], opener)
        return bool(rows)

    async def _compare(self, pool: asyncpg.Pool, attempt: Attempt, before: PacketRow, opener: str) -> None:
        if not is_by(before, opener):
            raise self._conflict(attempt, f"by {opener}, and {before.sender_agent_id} sent the input")
        (row,) = await opened_bodies(pool, [before])
        if is_sealed(row.body):
            raise InputUnusable(
                f"key {self.key!r} was used before, for session {attempt.session_id}, whose input is encrypted: set "
                "APC_SUBJECT_MASTER_KEY to compare it, or attach to the session by its id"
            )
        if _content(parse_packet(row.body).payload_as(MessagePayload)) != _content(self.payload):
            raise self._conflict(attempt, "for another input")

    def _conflict(self, attempt: Attempt, how: str) -> KeyConflict:
        return KeyConflict(f"key {self.key!r} was used {how}, in session {attempt.session_id}: choose another key")


async def _logged(pool: asyncpg.Pool, session_id: str, packet_id: UUID) -> PacketRow | None:
    rows = await list_agent_packets(pool, session_id=session_id, packet_id=packet_id, limit=1)
    return rows[0] if rows else None


async def _admitted(pool: asyncpg.Pool, session_id: str, packet_id: UUID) -> PacketRow | None:
    row = await _logged(pool, session_id, packet_id)
    return row if row is not None and row.verdict != "refused" else None


def is_by(row: PacketRow, agent_id: str, user: str | None = None) -> bool:
    """Return whether an agent sent the packet, or another agent of this broker user."""
    return row.sender_agent_id == agent_id or (user is not None and row.user_id == user)


def _content(payload: MessagePayload) -> Any:
    return payload.schema_id, canonical_json(dict(payload.content))


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions that a client has opened, those that changed last first.

    ```python
    from apc_client import SessionPage


    def lines(page: SessionPage) -> list[str]:
        return [f"{one.session_id} {one.state}" for one in page.sessions] + [f"of {page.total}"]
    ```

    Attributes:
        sessions: at most as many as were asked for.
        total: how many there are with these filters, on this page and others.
        next: what `Client.sessions` takes as `before` for the next page; None on the last one.
    """

    sessions: tuple[SessionStatus, ...]
    total: int
    next: tuple[datetime, str] | None


_OVERTAKEN = frozenset({"DUPLICATE_CONFLICT", "SESSION_TERMINAL"})
"""Refusals that tell of a start by another client, or of the end of a session that had no input."""


class Client:
    """Starts sessions of a running system and attaches to them. `apc_client.connect` makes one.

    ```python
    import apc_client


    @desk.on(Question)
    async def ask_lead(question: Question, ctx: HandlerContext) -> None:
        approval = await ctx.ask(question.text, to=Role("lead"), timeout=timedelta(hours=8))
        await ctx.complete(Answer(text=f"{approval.outcome} by {approval.by}"))


    async def open_questions(bus: apc_client.Client) -> list:
        while not (found := await bus.questions()):
            await asyncio.sleep(0.05)
        return found


    team = Team("support", agents=[desk], entry="desk", input=Question)
    async with apc_client.connect(people={"ida": "lead"}) as bus:
        session = await bus.start(team, Question(text="ship it?"), key="release-7")
        again = await bus.start(team, Question(text="ship it?"), key="release-7")
        assert again.session_id == session.session_id
        (question,) = await open_questions(bus)
        assert await bus.answer(question.packet_id, approved=True, note="go", person="ida") == "ida"
        same = bus.session(session.session_id, team)
        assert (await same.result(timeout=60)).text == "approved by ida"
        assert (await bus.sessions(states=["CLOSED"])).total == 1
    ```

    Args:
        bus: connected as a broker user for whom `operator` is registered.
        pool: connections to the log's database, for reading.
        operator: the agent that starts; it has the right `operate`.
        shards: of the deployment.
        key: with which the operator signs; default the one that its worker here would use.
        owner: of the keys of starts, which the clients of several runs share; default the operator.
        watch: tells that the log has grown; default its own.
    """

    def __init__(
        self,
        bus: Bus,
        pool: asyncpg.Pool,
        operator: Registration,
        shards: int,
        *,
        key: AgentKey | None = None,
        owner: str | None = None,
        watch: LogWatch | None = None,
    ) -> None:
        self._watch = watch or LogWatch(pool)
        self._bus = bus
        self._pool = pool
        self._shards = shards
        self._key = key
        self._owner = owner or operator.agent_id
        actor = Actor(agent_id=operator.agent_id, role=operator.role, swarm_id=operator.swarm_id)
        self._builder = Builder(actor, KnownSessions(operator.agent_id))

    @property
    def agent_id(self) -> str:
        """The agent in whose name this client starts sessions: the opener of a session, and the sender of its input."""
        return self._builder.agent_id

    async def questions(self, session_id: str | None = None) -> list[QuestionRow]:
        """Return what handlers ask people and nobody has answered yet, the one that is due first first.

        Args:
            session_id: only those of this session; default all.
        """
        return await list_questions(self._pool, session_id=session_id)

    async def answer(
        self,
        question: UUID,
        *,
        approved: bool,
        note: str | None = None,
        person: str | None = None,
        answer: BaseModel | Mapping[str, JsonValue] | None = None,
        attached: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """Answer a question as a person for whom this broker user speaks; return who has answered.

        Args:
            question: the packet_id of a row of `questions`.
            approved: whether the person approves.
            note: what the handler gets beside the answer.
            person: who answers; default the only one of those asked for whom this broker user speaks.
            answer: the fields of a question with `answer_schema`: the model that its handler named, or JSON.
            attached: JSON to keep in the answer's metadata, such as the foreign message that it was made of.

        Raises:
            InputUnusable: no such question is open, nobody here may answer it, or the gate refuses, a field, say.
            ServiceAway: orchestrator or persister do not answer.
        """
        outcome = AnswerOutcome.APPROVED if approved else AnswerOutcome.DENIED
        content = answer.model_dump(mode="json", by_alias=True) if isinstance(answer, BaseModel) else answer
        form = AnswerForm(question, outcome, note, person, content=content, attached=attached)
        return await answer_over(self._bus, self._pool, self._shards, form)

    async def sessions(
        self,
        *,
        run_id: str | None = None,
        since: datetime | None = None,
        states: Sequence[str] | None = None,
        running: bool | None = None,
        before: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """Return the sessions that this client has opened, those that changed last first.

        Args:
            run_id: only those of this run.
            since: only those that changed then or later.
            states: only those in one of these states, such as CLOSED and HALTED.
            running: only those that go on, or only those that have ended.
            before: the `next` of the page before.
            limit: at most so many.
        """
        filters: OpenerFilters = {"run_id": run_id, "since": since, "states": states, "running": running}
        rows = await sessions_of_opener(self._pool, self.agent_id, before=before, limit=limit + 1, **filters)
        total = await count_of_opener(self._pool, self.agent_id, **filters)
        found = tuple(map(status_of, rows[:limit]))
        is_last = len(rows) <= limit or not found
        return SessionPage(found, total, None if is_last else (found[-1].updated_at, found[-1].session_id))

    async def shares_run(self, run_id: str) -> bool:
        """Return whether somebody else has opened a session of a run.

        Args:
            run_id: the run.
        """
        return await has_other_opener(self._pool, run_id, self.agent_id)

    def session(self, session_id: str, team: Team | None = None) -> ClientSession:
        """Return the session `session_id`, which was started before, here or in another process.

        Args:
            session_id: as `ClientSession.session_id` and the commands show it.
            team: types its result; default none: `result` then needs a model.
        """
        models = {} if team is None else team.models
        return ClientSession(self._pool, session_id, models, watch=self._watch, cancels=self._cancel)

    def session_of(self, team: Team, key: str) -> ClientSession:
        """Return the session that the first start of the team under a key begins, or has begun.

        Args:
            team: as for `start`.
            key: as for `start`.
        """
        keyed = KeyedStart(self._owner, team.name, key, MessagePayload(schema_id="key/1", content={}))
        return self.session(keyed.attempt(0).session_id, team)

    async def start(
        self,
        team: Team,
        content: BaseModel,
        *,
        key: str | None = None,
        run_id: str | None = None,
        metadata: Mapping[str, TagValue] | None = None,
        attached: Mapping[str, JsonValue] | None = None,
    ) -> ClientSession:
        """Open a session of the team and give its entry the input; returns when the gate has accepted both.

        Args:
            team: whose members take part.
            content: a model that the team's entry takes.
            key: makes the start idempotent: the same key and input lead to the same session of this operator, or of
                earlier runs of this broker user. Default a new session.
            run_id: the run that the session belongs to, which may have others; by default a new one.
            metadata: tags by which people find the run, such as `{"customer": 7}`: short texts, numbers, booleans.
                START and input carry them. Bodies encrypted by a field of it (APC_SUBJECT_FIELD): the subject.
            attached: JSON beside the tags in the input's metadata. Nobody finds a run by it.

        Raises:
            InputUnusable: the entry does not take this model; the key is empty, or was used, and its input cannot be
                decrypted; the run's id or a tag cannot be used.
            SessionRefused: the gate refuses, or would refuse the input by its form; says code, place and remedy.
            KeyConflict: the key was used for another input, or its session is not this client's.
            StartUnconfirmed: orchestrator or persister do not answer; names the session, which begins when they do.
            BusError: the broker does not take it.
        """
        check_key(key)
        names = RunNames.of(run_id, metadata, attached)
        payload = _input(team, content)
        if key is None:
            attempt = Attempt(str(new_packet_id()), new_packet_id(), new_packet_id())
            await self._begin(team, payload, attempt, None, names)
            return self.session(attempt.session_id, team)
        return await self._start_once(team, KeyedStart(self._owner, team.name, key, payload), names)

    async def _start_once(self, team: Team, keyed: KeyedStart, names: RunNames) -> ClientSession:
        newest = await keyed.find(self._pool, self.agent_id, self._bus.user)
        while not newest.is_done:
            try:
                sent = await self._begin(team, keyed.payload, newest.attempt, newest.start, names)
                await keyed.check(self._pool, newest.attempt, sent)
                break
            except SessionRefused as error:
                # Another client of this broker user was faster, or the session ended before its input came.
                before, newest = newest, await keyed.find(self._pool, self.agent_id, self._bus.user)
                if error.code not in _OVERTAKEN or newest == before:
                    raise
        return self.session(newest.attempt.session_id, team)

    async def _begin(
        self, team: Team, payload: MessagePayload, attempt: Attempt, opened: PacketRow | None, names: RunNames
    ) -> Packet:
        """Send the START of a session and its input as one; the input alone to a session that was opened before.

        Returns the input.
        """
        start = self._opening(team, attempt, names) if opened is None else None
        first = self._first(team, payload, attempt, names if opened is None else names.in_run(opened.run_id))
        try:
            await self._send(start, first)
        except ServiceAway as error:
            raise StartUnconfirmed(attempt.session_id, str(error)) from error
        return first

    def _opening(self, team: Team, attempt: Attempt, names: RunNames) -> Packet:
        """Return the START of a session."""
        start = Draft(
            SignalPayload(signal=Signal.START, session=team.spec),
            to=ORCHESTRATOR,
            session_id=attempt.session_id,
            run_id=names.run_id,
            run_phase=RunPhase.EXECUTION,
            packet_id=attempt.start_id,
            metadata={**names.tags, "team": team.name},
        )
        return self._builder.build(start, None, 0).packet

    def _first(self, team: Team, payload: MessagePayload, attempt: Attempt, names: RunNames) -> Packet:
        """Return the input for the team's entry."""
        first = Draft(
            payload,
            to=team.entry,
            session_id=attempt.session_id,
            run_id=names.run_id,
            run_phase=RunPhase.EXECUTION,
            packet_id=attempt.input_id,
            parent=KnownParent(attempt.start_id, attempt.start_id),
            metadata={**names.tags, **names.attached} or None,
        )
        return self._builder.build(first, None, 1).packet

    async def _send(self, start: Packet | None, work: Packet) -> None:
        try:
            answer = await send_opening(self._bus, self._pool, start, work, self._key)
            _check(answer, work.trace.session_id)
        except PacketRefused as error:
            raise SessionRefused(error.code, error.path, error.message, remedy_of(error.code)) from error

    async def _cancel(self, status: SessionStatus, reason: str) -> None:
        signal = Draft(
            SignalPayload(signal=Signal.CANCEL, reason=reason or None),
            to=ORCHESTRATOR,
            session_id=status.session_id,
            run_id=status.run_id,
            task_id=status.task_id,
            run_phase=status.run_phase,
        )
        packet = self._builder.build(signal, None, 0).packet
        _check(await send_packet(self._bus, self._pool, packet, self._shards, self._key), status.session_id)


def _check(answer: GateAnswer, session_id: str) -> None:
    """Raise SessionRefused unless the gate has accepted the packet."""
    if answer.code is not None:
        message = answer.message or ""
        raise SessionRefused(answer.code, answer.path, message, answer.remedy, session_id=session_id)


def check_key(key: str | None) -> None:
    """Raise InputUnusable for the empty key: all who give one by mistake would share it."""
    if key == "":
        raise InputUnusable(
            "the key of a start is empty: name the work by it, or leave the key out for a new session each time"
        )


def _input(team: Team, content: BaseModel) -> MessagePayload:
    payload = payload_of(content)
    if not isinstance(payload, MessagePayload) or not (
        {payload.schema_id, ANY_SCHEMA} & team.agent(team.entry).schemas
    ):
        raise InputUnusable(f"{team.entry}, the entry of team {team.name}, has no handler of {type(content).__name__}")
    return payload
