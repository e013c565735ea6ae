"""Answer a question as a person: the act of a client, of `apc approval` and of the web console."""

from dataclasses import dataclass
from uuid import UUID

import asyncpg

from apc_bus.port import ActPublisher
from apc_client.direct_packet import direct_packet
from apc_client.sending import send_packet
from apc_contracts.envelope.packet import Packet, Trace
from apc_contracts.envelope.parts import MAX_TTL_MS
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import Registration
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.questions import MAX_TEXT, AnswerOutcome, AnswerSpec
from apc_contracts.vocabulary import PROTOCOL_1_1, RunPhase, Signal
from apc_log.queries.questions import QuestionRow, list_questions
from apc_log.registry import registered_people
from apc_web.errors import InputUnusable


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a person says to a question; `person` None = the one whom this broker user speaks for."""

    packet_id: UUID
    outcome: AnswerOutcome
    note: str | None = None
    person: str | None = None


async def answer_over(bus: ActPublisher, pool: asyncpg.Pool, shards: int, form: AnswerForm) -> str:
    """Send the ANSWER as the broker user of this bus and wait for the verdict; return who has answered.

    Raises:
        InputUnusable: there is no such open question, nobody may answer it here, or the gate refuses.
        ServiceAway: broker, database or gate do not answer.
    """
    if form.note is not None and len(form.note) > MAX_TEXT:
        raise InputUnusable(f"the note has {len(form.note)} characters, the limit is {MAX_TEXT}: shorten it")
    question = await find_question(pool, form.packet_id)
    person = await _person(pool, question, bus.user, form.person)
    packet = answer_packet(question, person, form.outcome, form.note)
    answer = await send_packet(bus, pool, packet, shards)
    if answer.reason is not None:
        raise InputUnusable(f"the gate refused the answer: {answer.reason}")
    return person.agent_id


async def find_question(pool: asyncpg.Pool, packet_id: UUID) -> QuestionRow:
    """Return an open question. Raises InputUnusable when there is none of that id."""
    found = await list_questions(pool, packet_id=packet_id, limit=1)
    if not found:
        raise InputUnusable(
            f"{packet_id} is no open question: it was answered, its time is over, or nobody asked it; "
            "`apc approval list` shows the open ones"
        )
    return found[0]


def answer_packet(question: QuestionRow, person: Registration, outcome: AnswerOutcome, note: str | None) -> Packet:
    """Return the ANSWER of a person to the agent that asked. It names the payload hash of what was answered."""
    trace = Trace(
        session_id=question.session_id,
        run_id=question.run_id,
        task_id=question.task_id,
        root_packet_id=question.root_packet_id or question.packet_id,
        parent_packet_id=question.packet_id,
        generation=0,
        step=0,
    )
    return direct_packet(
        person,
        SignalPayload(signal=Signal.ANSWER, answer=AnswerSpec(outcome=outcome, note=note, seen=question.payload_hash)),
        question.asker,
        trace,
        packet_id=new_packet_id(),
        run_phase=RunPhase(question.run_phase),
        ttl_ms=MAX_TTL_MS,
        protocol_version=PROTOCOL_1_1,
        expires_at=question.ends_at,  # a worker that is down until the session ends loses nothing
    )


async def _person(pool: asyncpg.Pool, question: QuestionRow, user: str, named: str | None) -> Registration:
    """Return the person who answers: the named one, or the only one asked whom this broker user speaks for."""
    people = await registered_people(pool)
    if named is not None:
        found = next((one for one in people if one.agent_id == named), None)
        if found is None:
            raise InputUnusable(f"--as: {named} is no registered person")
        return found
    able = [one for one in people if one.speaks_as(user) and one.agent_id in question.may_answer]
    if len(able) == 1:
        return able[0]
    asked = ", ".join(question.may_answer)
    if not able:
        raise InputUnusable(f"the broker user {user} speaks for none of {asked}: log in as one who does")
    names = ", ".join(one.agent_id for one in able)
    raise InputUnusable(f"the broker user {user} speaks for {names}: say with --as who answers")
