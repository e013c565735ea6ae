"""Starts sessions of teams, as a registered agent with the right `operate`."""

from uuid import UUID

import asyncpg
from pydantic import BaseModel

from apc_agents.emitting.draft import Draft, KnownParent
from apc_agents.emitting.emission import Builder
from apc_agents.keys import AgentKey
from apc_agents.session_phase import KnownSessions
from apc_agents.typed.message import payload_of
from apc_agents.typed.team import Team
from apc_bus.port import Bus
from apc_client.answering import AnswerForm, answer_over
from apc_client.errors import SessionRefused
from apc_client.keyed_start import Attempt, KeyedStart
from apc_client.sending import send_opening
from apc_client.session import ClientSession
from apc_contracts.envelope.packet import Actor, Packet
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import ANY_SCHEMA, Registration
from apc_contracts.judging.remedies import remedy_of
from apc_contracts.payloads.by_type import MessagePayload, SignalPayload
from apc_contracts.payloads.questions import AnswerOutcome
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase, Signal
from apc_log.queries.questions import QuestionRow, list_questions
from apc_log.queries.trace import PacketRow
from apc_web.errors import InputUnusable

_OVERTAKEN = frozenset({"DUPLICATE_CONFLICT", "SESSION_TERMINAL"})
"""Refusals that tell of a start by another client, or of the end of a session that had no input."""


class Client:
    """Starts sessions of a running system and attaches to them.

    Args:
        bus: connected as a broker user for whom `operator` is registered.
        pool: connections to the log's database, for reading.
        operator: the agent that starts; it has the right `operate`.
        shards: of the deployment.
        key: with which the operator signs; default the one that its worker here would use.
        owner: of the keys of starts, which the clients of several runs share; default the operator.
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
    ) -> None:
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
        """Return what handlers ask people and nobody has answered yet, the one that is due first first."""
        return await list_questions(self._pool, session_id=session_id)

    async def answer(
        self, question: UUID, *, approved: bool, note: str | None = None, person: str | None = None
    ) -> str:
        """Answer a question as a person for whom this broker user speaks; return who has answered.

        Args:
            question: the packet_id of a row of `questions`.
            person: who answers; default the only one of those asked for whom this broker user speaks.

        Raises:
            InputUnusable: no such question is open, nobody here may answer it, or the gate refuses.
            ServiceAway: gate or log writer do not answer.
        """
        outcome = AnswerOutcome.APPROVED if approved else AnswerOutcome.DENIED
        return await answer_over(self._bus, self._pool, self._shards, AnswerForm(question, outcome, note, person))

    def session(self, session_id: str, team: Team | None = None) -> ClientSession:
        """Return a session that was started before, here or in another process; the team types its result."""
        return ClientSession(self._pool, session_id, {} if team is None else team.models)

    async def start(self, team: Team, content: BaseModel, *, key: str | None = None) -> ClientSession:
        """Open a session of the team and give its entry the input; returns when the gate has accepted both.

        Args:
            content: a model that the team's entry takes.
            key: makes the start idempotent: the same key and input lead to the same session of this operator, or of
                earlier runs of this broker user. Default a new session.

        Raises:
            InputUnusable: the entry does not take this model; the key was used, and its input cannot be decrypted.
            SessionRefused: the gate refuses, or would refuse the input by its form; says code, place and remedy.
            KeyConflict: the key was used for another input, or its session is not this client's.
            ServiceAway: gate or log writer do not answer.
            BusError: the broker does not take it.
        """
        payload = _input(team, content)
        if key is None:
            attempt = Attempt(str(new_packet_id()), new_packet_id(), new_packet_id())
            await self._begin(team, payload, attempt, None)
            return self.session(attempt.session_id, team)
        keyed = KeyedStart(self._owner, team.name, key, payload)
        found = await keyed.find(self._pool, self.agent_id, self._bus.user)
        while not found.is_done:
            try:
                sent = await self._begin(team, payload, found.attempt, found.start)
                await keyed.check(self._pool, found.attempt, sent)
                break
            except SessionRefused as error:
                # Another client of this broker user was faster, or the session ended before its input came.
                before, found = found, await keyed.find(self._pool, self.agent_id, self._bus.user)
                if error.code not in _OVERTAKEN or found == before:
                    raise
        return self.session(found.attempt.session_id, team)

    async def _begin(self, team: Team, payload: MessagePayload, attempt: Attempt, opened: PacketRow | None) -> Packet:
        """Send the START of a session and its input as one; the input alone to a session that was opened before.

        Returns the input.
        """
        start = self._opening(team, attempt) if opened is None else None
        first = self._first(team, payload, attempt)
        await self._send(start, first)
        return first

    def _opening(self, team: Team, attempt: Attempt) -> Packet:
        """Return the START of a session."""
        start = Draft(
            SignalPayload(signal=Signal.START, session=team.spec),
            to=ORCHESTRATOR,
            session_id=attempt.session_id,
            run_phase=RunPhase.EXECUTION,
            packet_id=attempt.start_id,
        )
        return self._builder.build(start, None, 0).packet

    def _first(self, team: Team, payload: MessagePayload, attempt: Attempt) -> Packet:
        """Return the input for the team's entry."""
        first = Draft(
            payload,
            to=team.entry,
            session_id=attempt.session_id,
            run_phase=RunPhase.EXECUTION,
            packet_id=attempt.input_id,
            parent=KnownParent(attempt.start_id, attempt.start_id),
        )
        return self._builder.build(first, None, 1).packet

    async def _send(self, start: Packet | None, work: Packet) -> None:
        try:
            answer = await send_opening(self._bus, self._pool, start, work, self._shards, self._key)
        except PacketRefused as error:
            raise SessionRefused(error.code, error.path, error.message, remedy_of(error.code)) from error
        if answer.code is not None:
            raise SessionRefused(answer.code, answer.path, answer.message or "", remedy_of(answer.code))


def _input(team: Team, content: BaseModel) -> MessagePayload:
    payload = payload_of(content)
    if not isinstance(payload, MessagePayload) or not (
        {payload.schema_id, ANY_SCHEMA} & team.agent(team.entry).schemas
    ):
        raise InputUnusable(f"{team.entry}, the entry of team {team.name}, has no handler of {type(content).__name__}")
    return payload
