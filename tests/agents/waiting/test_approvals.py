"""Approvals of a proposal: what people see, how many must approve, and the evidence of what follows."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from tests.agents.conftest import Gate, MakeIdea, MakePacket, StageMaker
from tests.agents.waiting.pipelines import HOUR, answer_to

from apc_agents import (
    Agent,
    AgentError,
    Approval,
    AskTimeout,
    EmitRefused,
    HandlerContext,
    Retry,
    Role,
    message,
)
from apc_agents.handling.journal import Asked, RecordedCall, WaitRecord, decode_record
from apc_agents.running.delivery import SessionPosition
from apc_contracts import (
    ORCHESTRATOR,
    DecisionPayload,
    IdeaPayload,
    MessagePayload,
    NackPayload,
    Packet,
    PacketType,
    ReceiptKind,
    SignalPayload,
    reply_id,
)
from apc_contracts.payloads.by_type import AnswerOutcome, Question, Result
from apc_contracts.vocabulary import Signal

POSITION = SessionPosition(contract="task")
LEAD = Role("lead")
APPROVED, DENIED, TIMED_OUT = AnswerOutcome.APPROVED, AnswerOutcome.DENIED, AnswerOutcome.TIMED_OUT


@message("action/1")
class Action(BaseModel):
    kind: str
    cost: float = 1.0


SHOWN = {"schema": "action/1", "content": {"kind": "rollback", "cost": 1.0}}


def decision(result: Result | None) -> DecisionPayload:
    return DecisionPayload(
        decision_id="d", recommendation="r", priority_distribution={}, next_actions=(), result=result
    )


class Asking:
    """An agent that asks with these options, and emits what it was asked about."""

    def __init__(self, retries: int = 0, **options: Any) -> None:
        self.agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
        self.ends: list[Any] = []
        asked: dict[str, Any] = {"to": LEAD, "timeout": HOUR} | options

        @self.agent.on(PacketType.IDEA)
        async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            try:
                end: Any = await ctx.ask("Roll back?", **asked)
            except (AgentError, AskTimeout) as error:
                end = error
            self.ends.append(end)
            if len(self.ends) <= retries:
                raise Retry
            await ctx.emit(idea.payload, to="b-1")


def asks(gate: Gate) -> list[Packet]:
    """Return the questions, each once."""
    found = {one.packet_id: one for one in gate.packets if is_ask(one)}
    return list(found.values())


def is_ask(packet: Packet) -> bool:
    return isinstance(packet.payload, SignalPayload) and packet.payload.signal is Signal.ASK


def question_of(packet: Packet) -> Question:
    question = packet.payload_as(SignalPayload).question
    assert question is not None
    return question


def ideas(gate: Gate) -> list[Packet]:
    return [one for one in gate.packets if one.packet_type is PacketType.IDEA]


Start = Callable[..., Any]


@pytest.fixture
def start(make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea) -> Start:
    async def begin(asking: Asking, count: int = 1) -> Gate:
        gate: Gate = await (await make_stage(asking.agent)).start()
        await gate.deliver(make_packet(idea()), POSITION)
        await gate.until(lambda: len(asks(gate)) == count)
        return gate

    return begin


async def answer(gate: Gate, ask: Packet, *how: Any, **said: Any) -> Packet:
    """Deliver an answer and wait for its end."""
    packet = answer_to(ask, *how, **said)
    await gate.deliver(packet, POSITION)
    await gate.ended(packet)
    return packet


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (Action(kind="rollback"), {}),
        (MessagePayload(schema_id="action/1", content=SHOWN["content"], text="in words"), {"text": "in words"}),
        (
            decision(Result(schema_id="action/1", content=SHOWN["content"])),
            {"recommendation": "r"},
        ),
    ],
)
async def test_people_see_what_they_approve_and_the_words_beside(
    start: Start, about: BaseModel, words: dict[str, Any]
) -> None:
    (ask,) = asks(await start(Asking(about=about)))
    question = question_of(ask)
    assert (question.text, question.content) == ("Roll back?", SHOWN | words)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"about": Action(kind="x"), "content": {"a": 1}}, "ctx.ask has content= and about=: give one"),
        ({"about": decision(None)}, "ctx.ask(about=DecisionPayload(...)) has no schema and content"),
        ({"about": Result(schema_id="action/1", content={})}, "Result is no payload"),
        ({"approvals": 0}, "ctx.ask(approvals=0): give a number of people from 1 to 16"),
        ({"approvals": 17}, "ctx.ask(approvals=17): give a number of people from 1 to 16"),
        ({"approvals": 2, "to": ["alice", "alice"]}, "ctx.ask(approvals=2): to= names 1: name as many people"),
    ],
)
async def test_a_question_that_is_none_names_the_argument(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, options: dict[str, Any], said: str
) -> None:
    asking = Asking(**options)
    gate = await (await make_stage(asking.agent)).start()
    task = make_packet(idea())
    await gate.deliver(task, POSITION)
    await gate.ended(task)
    (error,) = asking.ends
    assert isinstance(error, AgentError) and said in str(error)


@pytest.mark.parametrize("outcome", [APPROVED, DENIED])
async def test_what_follows_an_answer_names_it_as_evidence(start: Start, outcome: AnswerOutcome) -> None:
    asking = Asking()
    gate = await start(asking)
    given = await answer(gate, asks(gate)[0], outcome)
    (emitted,) = ideas(gate)
    assert emitted.proof_bundle.evidence_refs == (f"packet:{given.packet_id}",)
    (end,) = asking.ends
    assert end.approvals == (end,) and (end.by, end.approved) == ("alice", outcome is APPROVED)


async def test_another_handler_of_the_agent_has_no_part_of_the_evidence(
    start: Start, make_packet: MakePacket, idea: MakeIdea
) -> None:
    gate = await start(Asking())
    await answer(gate, asks(gate)[0])
    await gate.deliver(make_packet(idea(), session_id="session-2"), POSITION)
    await gate.until(lambda: len(asks(gate)) == 2)
    assert asks(gate)[1].proof_bundle is None


async def test_several_questions_are_distinct_and_end_with_the_last_approval(start: Start) -> None:
    asking = Asking(approvals=2, about=Action(kind="rollback"))
    gate = await start(asking, count=2)
    first, second = asks(gate)
    assert first.packet_id != second.packet_id and question_of(first).content == SHOWN
    texts = [question_of(one).text for one in (first, second)]
    assert texts == [f"Roll back? ({n} of 2, each by another person)" for n in (1, 2)]
    assert question_of(second).content == SHOWN
    later = await answer(gate, second, person="bob", age=timedelta(seconds=2))
    assert not asking.ends
    last = await answer(gate, first)
    (end,) = asking.ends
    assert (end.approved, end.by, [one.by for one in end.approvals]) == (True, "alice", ["bob", "alice"])
    assert [one.packet_id for one in end.approvals] == [later.packet_id, last.packet_id]
    refs = ideas(gate)[0].proof_bundle.evidence_refs
    assert set(refs) == {f"packet:{later.packet_id}", f"packet:{last.packet_id}"}


async def test_two_approvals_of_one_person_are_one(start: Start) -> None:
    asking = Asking(approvals=2)
    gate = await start(asking, count=2)
    for ask in asks(gate):
        await answer(gate, ask)
    (end,) = asking.ends
    assert not end.approved and [one.by for one in end.approvals] == ["alice", "alice"]
    assert (end.outcome, end.note) == (DENIED, "alice has approved more than once: 2 different people are needed")


@pytest.mark.parametrize("outcome", [DENIED, TIMED_OUT])
async def test_the_first_other_answer_ends_the_wait(start: Start, outcome: AnswerOutcome) -> None:
    asking = Asking(approvals=3)
    gate = await start(asking, count=3)
    first, second, third = asks(gate)
    approved = await answer(gate, first, person="bob", age=timedelta(seconds=2))
    ended = await answer(gate, second, outcome, "carol")
    (end,) = asking.ends
    assert (end.approved, end.outcome, end.by) == (False, outcome, "carol")
    assert [one.by for one in end.approvals] == ["bob", "carol"]
    refs = ideas(gate)[0].proof_bundle.evidence_refs
    assert refs == (f"packet:{approved.packet_id}", f"packet:{ended.packet_id}")
    await answer(gate, third)  # nobody waits for it
    assert len(asking.ends) == 1


async def test_a_time_that_is_over_is_raised_for_several_too(start: Start) -> None:
    asking = Asking(approvals=2, on_timeout="raise")
    gate = await start(asking, count=2)
    _, second = asks(gate)
    await answer(gate, second, TIMED_OUT, ORCHESTRATOR)
    (end,) = asking.ends
    assert isinstance(end, AskTimeout) and end.packet_id == second.packet_id


async def test_a_refused_question_of_several_raises_with_its_rule(start: Start, make_packet: MakePacket) -> None:
    asking = Asking(approvals=2)
    gate = await start(asking, count=2)
    ask = asks(gate)[0]
    refusal = {"code": "RULE_FAILED", "rule": "r", "path": "$", "message": "No.", "remedy": "Ask a lead."}
    nack = make_packet(
        NackPayload(acked_packet_id=ask.packet_id, ack_status="REJECTED"),
        sender=ORCHESTRATOR,
        parent=ask,
        packet_id=reply_id(ask.packet_id, ORCHESTRATOR, "nack"),
        metadata={"refusal": refusal},
    )
    await gate.deliver(nack, is_refusal=True)
    await gate.until(lambda: bool(ideas(gate)))
    (end,) = asking.ends
    assert isinstance(end, EmitRefused)
    assert (end.rule, end.remedy, str(end)) == ("r", "Ask a lead.", "RULE_FAILED at $: No. Remedy: Ask a lead.")


async def test_a_later_answer_changes_nothing_when_the_handler_runs_again(start: Start) -> None:
    """A denial starts a run that asks for a retry; a second denial comes before the first comes again."""
    asking = Asking(approvals=2, retries=1)
    gate = await start(asking, count=2)
    first, second = asks(gate)
    denial = answer_to(first, DENIED, "bob")
    await gate.deliver(denial, POSITION)
    await gate.ended(denial, ReceiptKind.RETRY)
    await answer(gate, second, DENIED, "carol", age=timedelta(seconds=9))
    await gate.deliver(denial, POSITION, attempt=2)
    await gate.ended(denial)
    assert [[one.by for one in end.approvals] for end in asking.ends] == [["bob"], ["bob"]]


async def test_a_question_beside_a_request_for_two_approvals_keeps_its_own_answer(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    ends: list[Approval] = []

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        two = ctx.ask("Both?", to=LEAD, timeout=HOUR, approvals=2)
        ends.extend(await ctx.gather(two, ctx.ask("One?", to=LEAD, timeout=HOUR)))
        pipelines = (ctx.emit(idea.payload, to=to) for to in ("b-1", "b-2"))
        await asyncio.gather(*pipelines)

    gate: Gate = await (await make_stage(agent)).start()
    await gate.deliver(make_packet(idea()), POSITION)
    await gate.until(lambda: len(asks(gate)) == 3)
    first, second, alone = asks(gate)
    given = [await answer(gate, first, DENIED, "bob")]
    await answer(gate, second, person="late")
    assert not ends
    given.append(await answer(gate, alone, person="carol"))
    assert [(end.approved, end.by) for end in ends] == [(False, "bob"), (True, "carol")]
    refs = tuple(f"packet:{one.packet_id}" for one in given)
    assert [one.proof_bundle.evidence_refs for one in ideas(gate)] == [refs, refs]


def test_records_of_earlier_versions_are_read(make_packet: MakePacket, idea: MakeIdea) -> None:
    """They know no groups: each question of a wait is another call."""
    asked = [Asked(make_packet(idea()), number, group=number) for number in (0, 1)]
    record = WaitRecord(make_packet(idea()), (), [RecordedCall("gather", "s", asked=asked)])
    assert orjson.loads(record.encode())["entries"][0]["asked"][1][1:] == [1, None]
    assert [one.group for one in decode_record(record.encode()).asked] == [0, 1]
    asked[1].group = 0
    assert [one.group for one in decode_record(record.encode()).asked] == [0, 0]
