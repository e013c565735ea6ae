"""A question brings the schema of its answer: the gate checks what people fill in, and the handler gets a model."""

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator
from tests.orchestrator.conftest import House
from tests.orchestrator.waiting.office import HOUR, MANAGERS, Office, done

from apc_agents import Agent, AnswerUnusable, Approval, HandlerContext
from apc_contracts import DecisionPayload, Packet, PacketType, TaskIrPayload
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import task_contract
from apc_log.session_loading import load_session


class Reason(StrEnum):
    BROKEN = "broken"
    LATE = "late"


class Refund(BaseModel):
    """What is paid back."""

    amount: Decimal = Field(ge=0, le=500, decimal_places=2)
    due: date
    reason: Reason = Reason.LATE
    notes: list[str] = []

    @field_validator("notes")
    @classmethod
    def _is_short(cls, notes: list[str]) -> list[str]:
        if "forbidden" in notes:
            raise ValueError("a note is forbidden")
        return notes


class LaterRefund(BaseModel):
    amount: Decimal
    currency: str


FITTING = {"amount": "80.50", "due": "2026-12-01", "reason": "broken", "notes": ["A-2"]}


def refunding(model: type[BaseModel] | None = Refund, **options: Any) -> Agent:
    """Return an agent that asks for a refund, and decides with what it gets."""
    agent = Agent("red-1", role="role", swarm="red")
    asked: dict[str, Any] = {"to": MANAGERS, "timeout": HOUR, "returns": model} | options

    @agent.on(PacketType.TASK_IR)
    async def refund(task: Packet[TaskIrPayload], ctx: HandlerContext) -> DecisionPayload:
        try:
            approval: Approval[Any] = await ctx.ask("How much?", **asked)
        except AnswerUnusable as error:
            return done(error.reason)
        return done(f"{approval.outcome} {approval.answer!r} {len(approval.approvals)}")

    return agent


async def test_the_handler_gets_a_model(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
            assert question.answer_schema is not None
            assert question.answer_schema["x-order"] == ["amount", "due", "reason", "notes"]
            assert await office.answer("alice", question, content=FITTING) == ("accepted", None, None)
            said = await office.decided()
    wanted = Refund(amount=Decimal("80.50"), due=date(2026, 12, 1), reason=Reason.BROKEN, notes=["A-2"])
    assert said == f"approved {wanted!r} 1"


async def test_a_denial_has_no_fields(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            await office.answer("alice", await office.question(), "denied")
            assert await office.decided() == "denied None 1"


async def error_of(office: Office) -> str:
    """Wait for the ERROR of the handler; return what it says."""
    found: list[str] = []

    async def has_failed() -> bool:
        statement = "SELECT packet #>> '{payload,message}' FROM apc_log.packets WHERE packet_type = 'ERROR'"
        found[:] = [row[0] for row in await office.house.pool.fetch(statement)]
        return bool(found)

    await office.house.until(has_failed)
    return found[0]


AT = "payload.answer.content"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda said: said.pop("amount"), f"{AT}.amount"),
        (lambda said: said.update(amount=80.5), f"{AT}.amount"),
        (lambda said: said.update(amount="500.01"), f"{AT}.amount"),
        (lambda said: said.update(amount="-1"), f"{AT}.amount"),
        (lambda said: said.update(amount="1.005"), f"{AT}.amount"),
        (lambda said: said.update(due="2026-02-31"), f"{AT}.due"),
        (lambda said: said.update(reason="other"), f"{AT}.reason"),
        (lambda said: said.update(notes=["a", 1]), f"{AT}.notes[1]"),
        (lambda said: said.update(further=1), f"{AT}.further"),
        (lambda said: said.update(notes=["x"] * 2_000), AT),
    ],
)
async def test_the_gate_refuses_what_does_not_fit(
    office: Office, change: Callable[[dict[str, Any]], Any], path: str
) -> None:
    said = dict(FITTING)
    change(said)
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
            assert await office.answer("alice", question, content=said) == ("refused", "CONTENT_INVALID", path)
            assert (await office.question()).packet_id == question.packet_id, "it is still open"
            assert await office.answer("alice", question, content=FITTING) == ("accepted", None, None)


async def test_a_question_for_fields_is_not_approved_without_them(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
            assert await office.answer("alice", question) == ("refused", "CONTENT_INVALID", AT)


async def test_a_question_without_fields_is_not_answered_with_some(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding(None)):
            question = await office.question()
            assert await office.answer("alice", question, content=FITTING) == ("refused", "CONTENT_INVALID", AT)
            assert await office.answer("alice", question) == ("accepted", None, None)
            assert await office.decided() == "approved None 1"


async def test_the_schema_outlives_the_gate(office: Office) -> None:
    """Another lease reads the schema from the log."""
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
    async with office.house.gate():
        refused = await office.answer("alice", question, content={"amount": "1"})
        assert refused == ("refused", "CONTENT_INVALID", f"{AT}.due")
        assert await office.answer("alice", question, content=FITTING) == ("accepted", None, None)


async def test_a_validator_of_the_model_is_the_handlers(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
            await office.answer("alice", question, content=FITTING | {"notes": ["forbidden"]})
            assert await office.decided() == "notes: Value error, a note is forbidden"


async def test_a_worker_with_another_model_does_not_guess(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
        assert await office.answer("alice", question, content=FITTING) == ("accepted", None, None)
        async with office.worker(refunding(LaterRefund)):
            said = await error_of(office)
    assert "the handler has changed since it began to wait" in said


async def test_several_people_fill_in_one_each(office: Office) -> None:
    async with office.house.gate():
        await office.begin()
        await office.hire("bob")
        async with office.worker(refunding(approvals=2)):
            first = await office.question()
            await office.answer("alice", first, content=FITTING)
            await office.answer("bob", await office.question(), content=FITTING | {"amount": "7"})
            said = await office.decided()
    assert said.startswith("approved Refund(amount=Decimal('7')")
    assert said.endswith(" 2")


async def test_a_loaded_session_knows_what_the_live_one_does(house: House, office: Office) -> None:
    async with house.gate():
        task = await office.begin()
        async with office.worker(refunding()):
            question = await office.question()
    loaded: Any = await load_session(house.pool, task.trace.session_id, Contracts(task_contract()))
    assert list(loaded.answer_schemas) == [question.packet_id]
    assert loaded.waiting_bytes["red-1"] >= len(loaded.answer_schemas[question.packet_id])
