"""Attacks with what a question asks for and what is filled in: bombs, floods, strangers, late and hidden answers."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.orchestrator.judging.test_task_sessions import work
from tests.orchestrator.waiting.conftest import office
from tests.orchestrator.waiting.office import Office
from tests.orchestrator.waiting.test_typed_answers import FITTING, refunding
from tests.security.gate.rules import take_away

from apc_client.sending import answer_packet
from apc_contracts import Packet, SignalPayload
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.payloads.by_type import AnswerOutcome, Question
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.canonical import canonical_json
from apc_log.queries.questions import list_questions

__all__ = ["office"]
AT = "payload.answer.content"

DOUBLED: dict[str, Any] = {
    "$ref": "#/$defs/a0",
    "$defs": {f"a{one}": {"allOf": [{"$ref": f"#/$defs/a{one + 1}"}] * 2} for one in range(25)} | {"a25": {}},
}
BOMBS: dict[str, dict[str, Any]] = {
    "doubles at each level": DOUBLED,
    "is huge": {"enum": ["x" * 9_000]},
    "has many fields": {"properties": {f"f{one}": {} for one in range(400)}},
    "has dear patterns": {"properties": {f"f{one}": {"pattern": r"(\w{9}){9}"} for one in range(20)}},
    "leads elsewhere": {"$ref": "https://example.org/schema.json"},
    "is no schema": {"type": "money"},
}


def ask(parent: Packet, schema: dict[str, Any]) -> Packet:
    asked = SignalPayload(
        signal=Signal.ASK,
        question=Question(text="May I?", answer_schema=schema),
        expected_response_by=datetime.now(UTC) + timedelta(hours=1),
    )
    fields: dict[str, Any] = {"version": "apc/1.1", "session_id": parent.trace.session_id}
    return work("red-1", asked, ("role:release-manager",), parent=parent, **fields)


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
async def test_a_schema_that_costs_the_gate_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, office: Office, bomb: dict[str, Any], is_guarded: bool
) -> None:
    if not is_guarded:
        take_away(monkeypatch, "content_fits")
    house = office.house
    async with house.gate():
        await office.begin()
        assert house.opening is not None
        await house.publish(ask(house.opening, bomb))
        await house.quiet()
        assert bool(await list_questions(house.pool)) is not is_guarded
    if is_guarded:
        refusal = await house.pool.fetchval(
            "SELECT refusal ->> 'path' FROM apc_log.agent_packets WHERE refusal <> '{}'"
        )
        assert refusal.startswith("payload.question.answer_schema")


LARGE: dict[str, dict[str, Any]] = {
    "more than 64 KiB": FITTING | {"notes": ["x" * 70_000]},
    "more than 2,000 values": FITTING | {"notes": ["x"] * 2_000},
    "a field that nobody asked for": FITTING | {"is_admin": True},
}


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("content", LARGE.values(), ids=LARGE)
async def test_an_answer_is_no_larger_than_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, office: Office, content: dict[str, Any], is_guarded: bool
) -> None:
    if not is_guarded:
        take_away(monkeypatch, "content_fits")
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
            said = await office.answer("alice", question, content=content)
    assert said[:2] == (("refused", "CONTENT_INVALID") if is_guarded else ("accepted", None))


async def test_an_answer_of_a_megabyte_reaches_no_handler(office: Office) -> None:
    """The client does not send it; as bytes the gate refuses it unread, and unguarded the client would send it."""
    huge: dict[str, Any] = {**FITTING, "notes": ["x" * 1_000_000]}
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
            with pytest.raises(PacketRefused, match="TOO_LARGE"):
                await office.send_answer("alice", question, content=huge)
            alice = Registration("alice", "web", "release-manager", "people", kind=Kind.PERSON)
            packet = answer_packet(question, alice, AnswerOutcome.APPROVED, None, content=huge)
            body = canonical_json(packet.model_dump(mode="json", by_alias=True, exclude_none=True))
            await office.house.publish(packet, user="web", body=body)
            await office.house.quiet()
            codes = await office.house.pool.fetch("SELECT code FROM apc_log.packet_conflicts")
            assert "TOO_LARGE" in {row["code"] for row in codes}
            assert (await office.question()).packet_id == question.packet_id
            assert await office.answer("alice", question, content=FITTING) == ("accepted", None, None)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_who_was_not_asked_learns_nothing_of_the_fields(
    monkeypatch: pytest.MonkeyPatch, office: Office, is_guarded: bool
) -> None:
    """The right is judged first: an answer that does not fit is no way to read the schema."""
    if not is_guarded:
        take_away(monkeypatch, "may_answer")
    async with office.house.gate():
        await office.begin()
        await office.hire("mallory", "intern")
        async with office.worker(refunding()):
            question = await office.question()
            said = await office.answer("mallory", question, role="intern", content={"amount": "x"})
    fault = ("refused", "CONTENT_INVALID", f"{AT}.due")
    assert said == (("refused", "NOT_AUTHORIZED", "sender.agent_id") if is_guarded else fault)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_fields_that_come_after_the_deadline_are_refused(
    monkeypatch: pytest.MonkeyPatch, office: Office, is_guarded: bool
) -> None:
    if not is_guarded:
        take_away(monkeypatch, "may_answer")
        take_away(monkeypatch, "content_fits")
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding(timeout=timedelta(seconds=1))):
            question = await office.question()

        async def is_over() -> bool:
            return not await list_questions(office.house.pool)

        await office.house.until(is_over)
        said = await office.answer("alice", question, content=FITTING)
    late = ("refused", "NOT_AUTHORIZED", "trace.parent_packet_id")
    assert said == (late if is_guarded else ("accepted", None, None))
