"""Starts sessions of teams, as a registered agent with the right `operate`."""

from typing import Any
from uuid import UUID

import asyncpg
import orjson
from pydantic import BaseModel

from apc_agents.emitting.draft import Draft
from apc_agents.emitting.emission import Builder
from apc_agents.session_phase import KnownSessions
from apc_agents.typed.message import payload_of
from apc_agents.typed.team import Team
from apc_bus.port import Bus
from apc_client.answering import AnswerForm, answer_over
from apc_client.errors import KeyConflict, SessionRefused
from apc_client.sending import answer_to, send_packet
from apc_client.session import ClientSession
from apc_contracts.envelope.packet import Actor, Packet
from apc_contracts.identity.ids import keyed_id, new_packet_id
from apc_contracts.identity.registry import ANY_SCHEMA, Registration
from apc_contracts.judging.remedies import remedy_of
from apc_contracts.payloads.by_type import MessagePayload, SignalPayload
from apc_contracts.payloads.questions import AnswerOutcome
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase, Signal
from apc_contracts.wire.parsing import parse_packet
from apc_log.body_encryption import is_sealed
from apc_log.queries.bodies import opened_bodies
from apc_log.queries.questions import QuestionRow, list_questions
from apc_log.queries.trace import list_agent_packets
from apc_web.errors import InputUnusable


class Client:
    """Starts sessions of a running system and attaches to them.

    Args:
        bus: connected as a broker user for whom `operator` is registered.
        pool: connections to the log's database, for reading.
        operator: the agent that starts; it has the right `operate`.
        shards: of the deployment.
    """

    def __init__(self, bus: Bus, pool: asyncpg.Pool, operator: Registration, shards: int) -> None:
        self._bus = bus
        self._pool = pool
        self._shards = shards
        self._operator = operator.agent_id
        actor = Actor(agent_id=operator.agent_id, role=operator.role, swarm_id=operator.swarm_id)
        self._builder = Builder(actor, KnownSessions(operator.agent_id))

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
            key: makes the start idempotent: the same key and input lead to the same session of this operator. Default
                a new session.

        Raises:
            InputUnusable: the entry does not take this model; the key was used, and its input cannot be decrypted.
            SessionRefused: the gate refuses; says code, place and remedy.
            KeyConflict: the key was used for another input.
            ServiceAway: gate or log writer do not answer.
            BusError: the broker does not take it.
        """
        payload = _input(team, content)
        if key is None:
            session_id, start_id, input_id = str(new_packet_id()), new_packet_id(), new_packet_id()
        else:
            named = (self._operator, team.name, key)
            session_id = str(keyed_id(*named, "session"))
            start_id, input_id = keyed_id(*named, "start"), keyed_id(*named, "input")
            if await self._is_started(session_id, input_id, payload, key):
                return self.session(session_id, team)
        start = Draft(
            SignalPayload(signal=Signal.START, session=team.spec),
            to=ORCHESTRATOR,
            session_id=session_id,
            run_phase=RunPhase.EXECUTION,
            packet_id=start_id,
        )
        opened = self._builder.build(start, None, 0).packet
        await self._send(opened)
        first = Draft(
            payload,
            to=team.entry,
            session_id=session_id,
            run_phase=RunPhase.EXECUTION,
            packet_id=input_id,
            parent=opened,
        )
        await self._send(self._builder.build(first, None, 1).packet)
        return self.session(session_id, team)

    async def _send(self, packet: Packet) -> None:
        await send_packet(self._bus, packet, self._shards)
        answer = await answer_to(self._pool, packet, self._bus.user)
        if answer.code is not None:
            raise SessionRefused(answer.code, answer.path, answer.message or "", remedy_of(answer.code))

    async def _is_started(self, session_id: str, input_id: UUID, payload: MessagePayload, key: str) -> bool:
        rows = await list_agent_packets(self._pool, session_id=session_id, packet_id=input_id, limit=1)
        if not rows or rows[0].verdict == "refused":
            return False  # sending it again repeats why it was refused
        (row,) = await opened_bodies(self._pool, rows)
        if is_sealed(row.body):
            raise InputUnusable(
                f"key {key!r} was used before, for session {session_id}, whose input is encrypted: set "
                "APC_SUBJECT_MASTER_KEY to compare it, or attach to the session by its id"
            )
        before = parse_packet(row.body).payload_as(MessagePayload)
        if _content(before) != _content(payload):
            raise KeyConflict(f"key {key!r} was used for another input, in session {session_id}: choose another key")
        return True


def _input(team: Team, content: BaseModel) -> MessagePayload:
    payload = payload_of(content)
    if not isinstance(payload, MessagePayload) or not (
        {payload.schema_id, ANY_SCHEMA} & team.agent(team.entry).schemas
    ):
        raise InputUnusable(f"{team.entry}, the entry of team {team.name}, has no handler of {type(content).__name__}")
    return payload


def _content(payload: MessagePayload) -> Any:
    return payload.schema_id, orjson.dumps(dict(payload.content), option=orjson.OPT_SORT_KEYS)
