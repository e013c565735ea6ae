"""Sends packets on behalf of an agent or a person, and reads the gate's verdict."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
from pydantic import JsonValue

from apc_agents.keys import AgentKey, find_key
from apc_bus import headers
from apc_bus.database import is_passing
from apc_bus.port import ActPublisher, Bus, HeaderValue, Message, Publication
from apc_bus.settings import WorkerSettings
from apc_bus.topology import INGRESS
from apc_contracts.errors import InputUnusable, PacketRefused, ServiceAway
from apc_contracts.identity.ids import new_packet_id, slot_of
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.packet import MAX_TTL_MS, PACKET_TYPES, TYPE_OF_PAYLOAD, Actor, Packet, Recipient, Routing, Trace
from apc_contracts.payloads.by_type import MAX_TEXT, AnswerOutcome, AnswerSpec, Payload, SignalPayload
from apc_contracts.vocabulary import PROTOCOL_1_1, PROTOCOL_VERSION, Channel, DeliveryMode, RunPhase, Signal
from apc_contracts.wire.parsing import seal
from apc_log.placement import read_shard
from apc_log.queries.questions import QuestionRow, list_questions, read_verdicts
from apc_log.registry import registered_people

PAUSE_SECONDS = 0.02
"""Between two looks."""


async def until(
    holds: Callable[[], Awaitable[bool]], patience: timedelta | None, *, pause_seconds: float = PAUSE_SECONDS
) -> None:
    """Wait until the condition holds; while the database is away it does not. Raises TimeoutError after `patience`."""
    async with asyncio.timeout(None if patience is None else patience.total_seconds()):
        while True:
            try:
                if await holds():
                    return
            except Exception as error:
                if not is_passing(error):
                    raise
            await asyncio.sleep(pause_seconds)


PATIENCE = timedelta(seconds=8)
"""How long to wait until the log has the gate's verdict."""


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """The gate's verdict: `accepted`, `refused` or `held`, and why it was refused: code, place and words."""

    verdict: str
    code: str | None = None
    path: str | None = None
    message: str | None = None
    own_remedy: str | None = None
    """Of the rule that refused it."""

    @property
    def remedy(self) -> str:
        """What corrects the packet: the remedy of the rule that refused it, else of the code; "" when unknown."""
        return self.own_remedy or remedy_of(self.code or "")

    @property
    def reason(self) -> str | None:
        """Why it was refused, and what corrects it; None when it was not."""
        if self.code is None:
            return None
        place = f"{self.code} at {self.path}: " if self.path is not None else ""
        told = f"{place}{self.message}"
        return f"{told.removesuffix('.')}. Remedy: {self.remedy}" if self.remedy else told


async def send_packet(
    bus: ActPublisher, pool: asyncpg.Pool, packet: Packet, shards: int, key: AgentKey | None = None
) -> GateAnswer:
    """Send as the broker user of this bus, signed with the key; return the gate's verdict.

    Without a key it is signed as the sender's worker here would sign.

    Raises:
        ServiceAway: the verdict did not come in time; the packet waits in the orchestrator's queue.
        BusError: the broker did not take it.
        PacketRefused: it is too large.
        AgentKeyUnusable: the sender's key cannot be read.
    """
    shard = await read_shard(pool, packet.trace.session_id, shards)
    await bus.publish(Publication(INGRESS, str(shard), _message(bus.user, packet, key)))
    return await answer_to(pool, packet, bus.user)


async def send_opening(
    bus: Bus, pool: asyncpg.Pool, start: Packet | None, work: Packet, key: AgentKey | None = None
) -> GateAnswer:
    """Send the work of a session and the START before it, in one message; return the first refusal, or the last answer.

    Both are written before either is sent, so that nothing is opened for work that nobody could take. If the gate
    refuses the work, it halts the session.

    Args:
        start: None = the session is open and has no work yet.

    Raises as `send_packet`.
    """
    packets = [work] if start is None else [start, work]
    messages = [_message(bus.user, packet, key, is_opening=packet is work) for packet in packets]
    slot = slot_of(work.trace.session_id)
    await bus.publish(Publication(INGRESS, str(slot), messages[0], tuple(messages[1:])))
    answers = [await answer_to(pool, packets[0], bus.user)]
    if answers[0].code is None and start is not None:
        answers.append(await answer_to(pool, work, bus.user))
    return answers[-1]


def _message(user: str, packet: Packet, key: AgentKey | None, *, is_opening: bool = False) -> Message:
    sealed = seal(packet)
    key = key or find_key(WorkerSettings(), packet.sender.agent_id)
    values: dict[str, HeaderValue] = {} if key is None else {headers.SIGNATURE: key.sign(sealed)}
    if is_opening:
        values[headers.OPENING] = True
    return Message(
        sealed.body,
        str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(packet.trace.root_packet_id),
        user_id=user,
        headers=values,
    )


async def answer_to(pool: asyncpg.Pool, packet: Packet, user: str, patience: timedelta = PATIENCE) -> GateAnswer:
    """Return the gate's verdict on a packet that this broker user published, once the log has it.

    Raises:
        ServiceAway: not within `patience`; the packet waits in the orchestrator's queue.
    """
    rows: list[asyncpg.Record] = []

    async def is_judged() -> bool:
        session_id, sender = packet.trace.session_id, packet.sender.agent_id
        rows[:] = await read_verdicts(pool, session_id, packet.packet_id, sender, user)
        return bool(rows)

    try:
        await until(is_judged, patience)
    except TimeoutError as error:
        raise ServiceAway(
            f"the packet was sent, but is not in the log after {patience.total_seconds():g} s: do `apc serve "
            "orchestrator` and `apc serve persister` run? It is judged as soon as they do"
        ) from error
    row = rows[0]
    return GateAnswer(row["verdict"], row["code"], row["path"], row["message"], row["remedy"])


# The packet that a person or an operator sends with one command: urgent, to one recipient, without an ACK.

_URGENT = 9
"""The highest priority: somebody waits for the verdict."""


def direct_packet(
    sender: Registration,
    payload: Payload,
    recipient: str,
    trace: Trace,
    *,
    packet_id: UUID,
    run_phase: RunPhase,
    ttl_ms: int,
    protocol_version: str = PROTOCOL_VERSION,
    expires_at: datetime | None = None,
    metadata: Mapping[str, JsonValue] | None = None,
) -> Packet:
    """Return the packet of a registered sender, created now."""
    packet_type = TYPE_OF_PAYLOAD[type(payload)]
    return PACKET_TYPES[packet_type](
        protocol_version=protocol_version,
        packet_id=packet_id,
        packet_type=packet_type,
        channel=Channel.INTER_AGENT,
        run_phase=run_phase,
        created_at=datetime.now(UTC),
        expires_at=expires_at,
        sender=Actor(agent_id=sender.agent_id, role=sender.role, swarm_id=sender.swarm_id),
        recipients=(Recipient(agent_id=recipient),),
        trace=trace,
        routing=Routing(delivery_mode=DeliveryMode.DIRECT, priority=_URGENT, ttl_ms=ttl_ms, requires_ack=False),
        confidence=1.0,
        symbolic_keys=(),
        payload=payload,
        metadata=metadata,
    )


# Answer a question as a person: the act of a client, of `apc approval` and of the web console.


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What a person says to a question; `person` None = the one whom this broker user speaks for."""

    packet_id: UUID
    outcome: AnswerOutcome
    note: str | None = None
    person: str | None = None
    seen: str | None = None
    """Payload hash of what the person read, for the gate to compare; None = of the question as the log has it."""
    content: Mapping[str, JsonValue] | None = None
    """The fields that the question asks for."""
    attached: Mapping[str, JsonValue] | None = None
    """What the answer was made of, kept in its metadata."""


async def answer_over(bus: ActPublisher, pool: asyncpg.Pool, shards: int, form: AnswerForm) -> str:
    """Send the ANSWER as the broker user of this bus and wait for the verdict; return who has answered.

    Raises:
        InputUnusable: there is no such open question, nobody may answer it here, or the gate refuses.
        ServiceAway: broker, database or orchestrator do not answer.
    """
    if form.note is not None and len(form.note) > MAX_TEXT:
        raise InputUnusable(f"the note has {len(form.note)} characters, the limit is {MAX_TEXT}: shorten it")
    question = await find_question(pool, form.packet_id)
    person = await _person(pool, question, bus.user, form.person)
    packet = answer_packet(question, person, form.outcome, form.note, form.seen, form.content, attached=form.attached)
    try:
        answer = await send_packet(bus, pool, packet, shards)
    except PacketRefused as error:
        raise InputUnusable(f"the answer cannot be sent: {error}") from error
    if answer.reason is not None:
        raise InputUnusable(f"the gate refused the answer: {answer.reason}")
    return person.agent_id


async def find_question(pool: asyncpg.Pool, packet_id: UUID) -> QuestionRow:
    """Return an open question. Raises InputUnusable when there is none of that id."""
    questions = await list_questions(pool, packet_id=packet_id, limit=1)
    if not questions:
        raise InputUnusable(
            f"{packet_id} is no open question: it was answered, its time is over, or nobody asked it; "
            "`apc approval list` shows the open ones"
        )
    return questions[0]


def answer_packet(
    question: QuestionRow,
    person: Registration,
    outcome: AnswerOutcome,
    note: str | None,
    seen: str | None = None,
    content: Mapping[str, JsonValue] | None = None,
    *,
    attached: Mapping[str, JsonValue] | None = None,
) -> Packet:
    """Return the ANSWER of a person to the agent that asked. It names the payload hash of what was answered."""
    said = AnswerSpec(outcome=outcome, note=note, seen=seen or question.payload_hash, content=content)
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
        SignalPayload(signal=Signal.ANSWER, answer=said),
        question.asker,
        trace,
        packet_id=new_packet_id(),
        run_phase=RunPhase(question.run_phase),
        ttl_ms=MAX_TTL_MS,
        protocol_version=PROTOCOL_1_1,
        expires_at=question.ends_at,  # a worker that is down until the session ends loses nothing
        metadata=attached,
    )


async def _person(pool: asyncpg.Pool, question: QuestionRow, user: str, named: str | None) -> Registration:
    """Return the person who answers: the named one, or the only one asked whom this broker user speaks for."""
    people = await registered_people(pool)
    if named is not None:
        answerer = next((one for one in people if one.agent_id == named), None)
        if answerer is None:
            raise InputUnusable(f"--as: {named} is no registered person")
        return answerer
    able = [one for one in people if one.speaks_as(user) and one.agent_id in question.may_answer]
    if len(able) == 1:
        return able[0]
    asked = ", ".join(question.may_answer)
    if not able:
        raise InputUnusable(f"the broker user {user} speaks for none of {asked}: log in as one who does")
    names = ", ".join(one.agent_id for one in able)
    raise InputUnusable(f"the broker user {user} speaks for {names}: say who answers, with --as or `person=`")
