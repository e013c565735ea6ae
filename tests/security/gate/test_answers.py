"""Somebody answers a question to people who must not: in nobody's name but their own, too late, or unread."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.judging.test_content import FINDING, register
from tests.orchestrator.judging.test_task_sessions import refusal_of, work
from tests.orchestrator.waiting.office import Office, asking
from tests.security.gate.rules import take_away

from apc_contracts import Packet, SignalPayload
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked
from apc_contracts.payloads.by_type import AgentRequest, AnswerOutcome, AnswerSpec, Result
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.parsing import payload_hash
from apc_log.queries.questions import QuestionRow, list_questions
from apc_orchestrator.judging import registry

Answered = tuple[str, str | None, str | None]
Act = Callable[[Office, QuestionRow], Awaitable[Answered]]


async def by_somebody_who_was_not_asked(office: Office, question: QuestionRow) -> Answered:
    await office.hire("mallory", "intern")
    return await office.answer("mallory", question, role="intern")


async def by_somebody_hired_after_it_was_asked(office: Office, question: QuestionRow) -> Answered:
    await office.hire("mallory")
    return await office.answer("mallory", question)


async def after_the_person_was_revoked(office: Office, question: QuestionRow) -> Answered:
    await office.change(AgentRevoked(change_id=uuid4(), agent_id="alice"))
    return await office.answer("alice", question)


async def after_the_role_was_taken_away(office: Office, question: QuestionRow) -> Answered:
    await office.hire("alice", "intern")
    return await office.answer("alice", question, role="intern")


async def through_a_broker_user_that_does_not_speak_for_the_person(office: Office, question: QuestionRow) -> Answered:
    return await office.answer("alice", question, user="agent.red-1")


async def by_the_agent_that_asked(office: Office, question: QuestionRow) -> Answered:
    return await office.answer("red-1", question, user="agent.red-1", role="role", swarm="red")


async def by_another_agent(office: Office, question: QuestionRow) -> Answered:
    return await office.answer("blue-1", question, user="agent.blue-1", role="role", swarm="blue")


async def a_second_time(office: Office, question: QuestionRow) -> Answered:
    assert await office.answer("alice", question, "denied") == ("accepted", None, None)
    return await office.answer("alice", question)


async def when_the_time_is_over(office: Office, question: QuestionRow) -> Answered:
    async def is_over() -> bool:
        return not await list_questions(office.house.pool)

    await office.house.until(is_over)
    return await office.answer("alice", question)


async def to_what_was_not_read(office: Office, question: QuestionRow) -> Answered:
    said = AnswerSpec(outcome=AnswerOutcome.APPROVED, seen="0" * 64)
    return await office.answer("alice", question, payload=SignalPayload(signal=Signal.ANSWER, answer=said))


async def as_the_gate_does(office: Office, question: QuestionRow) -> Answered:
    said = AnswerSpec(outcome=AnswerOutcome.TIMED_OUT, seen=question.payload_hash)
    return await office.answer("alice", question, payload=SignalPayload(signal=Signal.ANSWER, answer=said))


ACTS: dict[Act, tuple[str, Answered]] = {
    by_somebody_who_was_not_asked: ("may_answer", ("refused", "NOT_AUTHORIZED", "sender.agent_id")),
    by_somebody_hired_after_it_was_asked: ("may_answer", ("refused", "NOT_AUTHORIZED", "sender.agent_id")),
    after_the_person_was_revoked: ("sender_is_known", ("refused", "UNKNOWN_SENDER", None)),
    after_the_role_was_taken_away: ("may_answer", ("refused", "NOT_AUTHORIZED", "sender.agent_id")),
    through_a_broker_user_that_does_not_speak_for_the_person: (
        "sender_is_authentic",
        ("refused", "SENDER_MISMATCH", None),
    ),
    by_the_agent_that_asked: ("may_answer", ("refused", "NOT_AUTHORIZED", "sender.agent_id")),
    by_another_agent: ("may_answer", ("refused", "NOT_AUTHORIZED", "sender.agent_id")),
    a_second_time: ("may_answer", ("refused", "NOT_AUTHORIZED", "trace.parent_packet_id")),
    when_the_time_is_over: ("may_answer", ("refused", "NOT_AUTHORIZED", "trace.parent_packet_id")),
    to_what_was_not_read: ("may_answer", ("refused", "NOT_AUTHORIZED", "payload.answer.seen")),
    as_the_gate_does: ("may_answer", ("refused", "NOT_AUTHORIZED", "payload.answer.outcome")),
}
"""Act -> the rule that refuses it, and how."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_an_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, office: Office, act: Act, is_guarded: bool
) -> None:
    rule, refused = ACTS[act]
    if not is_guarded:
        take_away(monkeypatch, rule)
    is_late = act is when_the_time_is_over
    async with office.house.gate():
        await office.begin()
        async with office.worker(asking(timeout=timedelta(seconds=1 if is_late else 3600))):
            question = await office.question()
        assert await act(office, question) == (refused if is_guarded else ("accepted", None, None))
        is_still_open = is_guarded and act not in (a_second_time, when_the_time_is_over)
        assert bool(await list_questions(office.house.pool)) is is_still_open


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_no_agent_speaks_for_a_person(monkeypatch: pytest.MonkeyPatch, office: Office, is_guarded: bool) -> None:
    """With `--via` of its broker user the agent that asked approves its own question in the person's name."""
    if not is_guarded:
        monkeypatch.setattr(registry, "voice_objection", lambda *_: None)
    async with office.house.gate():
        await office.begin()
        await office.hire("alice", "release-manager", "agent.red-1", "web")
        async with office.worker(asking()):
            question = await office.question()
        said = await office.answer("alice", question, user="agent.red-1")
        assert said == (("refused", "SENDER_MISMATCH", None) if is_guarded else ("accepted", None, None))
        rows = await office.house.pool.fetch("SELECT reason FROM apc_log.packet_conflicts")
        told = [row for row in rows if row["reason"].startswith("the broker user agent.red-1 is that of agent red-1")]
        assert len(told) == is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_no_agent_gets_the_broker_user_of_a_person(
    monkeypatch: pytest.MonkeyPatch, office: Office, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(registry, "voice_objection", lambda *_: None)
    change = AgentAdded(
        change_id=uuid4(), agent_id="red-1", broker_user="web", role="role", swarm_id="red", handles=()
    )  # fmt: skip
    async with office.house.gate():
        await office.begin()
        await office.change(change)
        user = await office.house.pool.fetchval("SELECT broker_user FROM apc_log.agents WHERE agent_id = 'red-1'")
        assert user == ("agent.red-1" if is_guarded else "web")


CONTENT = {"file": "a.py", "line": 1}


def answer(ask: Packet, agent: str, schema_id: str = "finding/1", outcome: str = "answered") -> Packet:
    result = Result(schema_id=schema_id, content=CONTENT) if outcome == "answered" else None
    said = AnswerSpec(outcome=AnswerOutcome(outcome), seen=payload_hash(ask.payload), result=result)
    return work(agent, SignalPayload(signal=Signal.ANSWER, answer=said), ("red-1",), parent=ask, version="apc/1.1")


def by_an_agent_that_was_not_asked(ask: Packet) -> Packet:
    return answer(ask, "sentinel")


def with_a_result_of_another_schema(ask: Packet) -> Packet:
    return answer(ask, "blue-1", "other/1")


def with_an_approval(ask: Packet) -> Packet:
    return answer(ask, "blue-1", outcome="approved")


def with_a_wake_in_the_place_of_the_gate(ask: Packet) -> Packet:
    wake = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key="k", at=datetime.now(UTC)))
    return work("blue-1", wake, ("red-1",), parent=ask, version="apc/1.1")


def with_a_request_to_itself(ask: Packet) -> Packet:
    return work("red-1", ask.payload, ("red-1",), parent=ask, version="apc/1.1")


REQUEST_ACTS: dict[Any, tuple[str, tuple[str, str]]] = {
    by_an_agent_that_was_not_asked: ("may_answer", ("NOT_AUTHORIZED", "sender.agent_id")),
    with_a_result_of_another_schema: ("may_answer", ("NOT_AUTHORIZED", "payload.answer.result.schema")),
    with_an_approval: ("may_answer", ("NOT_AUTHORIZED", "payload.answer.outcome")),
    with_a_wake_in_the_place_of_the_gate: ("may_wake", ("NOT_AUTHORIZED", "recipients")),
    with_a_request_to_itself: ("may_ask", ("NOT_AUTHORIZED", "recipients[0]")),
}
"""Act -> the rule that refuses it, and how."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", REQUEST_ACTS, ids=lambda act: act.__name__)
async def test_a_request_is_answered_by_who_was_asked(
    monkeypatch: pytest.MonkeyPatch, office: Office, act: Callable[[Packet], Packet], is_guarded: bool
) -> None:
    rule, refused = REQUEST_ACTS[act]
    if not is_guarded:
        take_away(monkeypatch, rule)
    async with office.house.gate():
        task = await office.begin()
        for schema_id in ("finding/1", "other/1"):
            await register(office.house, FINDING, schema_id)
        request = AgentRequest(schema_id="finding/1", content=CONTENT, returns="finding/1")
        due = datetime.now(UTC) + timedelta(hours=1)
        payload = SignalPayload(signal=Signal.ASK, request=request, expected_response_by=due)
        ask = work("red-1", payload, ("blue-1",), parent=task, version="apc/1.1")
        await office.house.publish(ask)
        await office.house.quiet()
        packet = act(ask)
        await office.house.publish(packet)
        await office.house.quiet()
        if is_guarded:
            assert await refusal_of(office.house, packet) == refused
        statement = "SELECT verdict FROM apc_log.agent_packets WHERE packet_id = $1"
        verdict = await office.house.pool.fetchval(statement, packet.packet_id)
        assert verdict == ("refused" if is_guarded else "accepted")
