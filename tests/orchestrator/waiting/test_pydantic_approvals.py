"""Tool calls of a pydantic-ai agent that wait for people: one wait for a model turn, over a restart of the worker."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent
from pydantic_ai import CallDeferred, DeferredToolRequests
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.support.traffic.packets import make_packet

from apc_agents import AgentInvalid, AgentTestClient, HandlerFailed, message
from apc_agents.effects import InMemoryEffectStore
from apc_agents.typed import document_of, payload_of, schema_of
from apc_contracts import Packet
from apc_contracts.agent import SecurityLevel
from apc_contracts.vocabulary import RunPhase
from apc_log.queries.questions import QuestionRow, list_questions
from apc_minds.memory import InMemoryMemoryStore
from apc_minds.pydantic_ai import Approvers, PydanticAgent, ToolRule

from ..judging.test_content import register
from .office import MANAGERS, Office

RESULT = "SELECT packet #> '{payload,result,content}' ->> 'text' FROM apc_log.packets WHERE packet_type = 'DECISION'"
CALLS: Sequence[tuple[str, dict[str, Any]]] = (
    ("look", {"file": "a.py"}),
    ("merge", {"branch": "main"}),
    ("deploy", {"to": "prod"}),
    ("measure", {}),
)


@message("change/1")
class Change(BaseModel):
    text: str


@message("report/1")
class Report(BaseModel):
    text: str


class Shop:
    """A pydantic-ai agent with tools, and what came of them."""

    def __init__(self, calls: Sequence[tuple[str, dict[str, Any]]] = CALLS) -> None:
        self.asked = 0
        self.made: list[str] = []
        self.calls = calls
        self.memory, self.effects = InMemoryMemoryStore(), InMemoryEffectStore()

    def agent(self, approvers: Approvers | None, **options: Any) -> PydanticAgent:
        joined = ModelAgent(FunctionModel(self._think), output_type=Report)

        @joined.tool_plain
        def look(file: str) -> str:
            self.made.append("look")
            return f"{file} is fine"

        @joined.tool_plain(requires_approval=True)
        def merge(branch: str) -> str:
            self.made.append("merge")
            return "merged"

        @joined.tool_plain(requires_approval=True)
        def deploy(to: str) -> str:
            self.made.append("deploy")
            return "deployed"

        @joined.tool_plain
        def measure() -> str:
            raise CallDeferred

        return PydanticAgent(
            "red-1", joined, input=Change, role="role", swarm="red", completes=True, approvers=approvers, **options
        )

    def _think(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        returns = [part for one in messages for part in one.parts if isinstance(part, ToolReturnPart)]
        if not returns:
            parts = [ToolCallPart(name, args, tool_call_id=f"call-{name}") for name, args in self.calls]
            return ModelResponse(parts=parts)
        told = sorted(f"{part.tool_name}: {' '.join(str(part.content).splitlines()[:2])}" for part in returns)
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"text": "; ".join(told)})])


async def begin(office: Office) -> None:
    task: Packet = await office.begin()
    for model in (Change, Report):
        await register(office.house, document_of(model), str(schema_of(model)))
    change = payload_of(Change(text="+ x"))
    await office.house.publish(
        make_packet(
            "librarian", change, ("red-1",), phase=RunPhase.EXECUTION, parent=office.house.opening, version="apc/1.1"
        )
    )
    assert task


async def questions(office: Office, count: int) -> dict[str, QuestionRow]:
    """Wait for as many open questions; return them by the tool that they are about."""
    found: list[QuestionRow] = []

    async def are_asked() -> bool:
        found[:] = await list_questions(office.house.pool)
        return len(found) == count

    await office.house.until(are_asked)
    return {one.content["tool"]: one for one in found}


async def test_one_model_turn_is_one_wait_and_goes_on_after_a_restart(office: Office) -> None:
    shop = Shop()
    stores: dict[str, Any] = {"memory": shop.memory, "effects": shop.effects}
    async with office.house.gate():
        async with office.worker(shop.agent(Approvers(MANAGERS)), **stores):
            await begin(office)
            asked = await questions(office, 3)
        assert set(asked) == {"merge", "deploy", "measure"}
        assert asked["merge"].content == {
            "tool": "merge", "tool_call_id": "call-merge", "arguments": {"branch": "main"},
        }  # fmt: skip
        assert (shop.asked, shop.made) == (1, ["look"])
        for tool, outcome in (("measure", "approved"), ("deploy", "denied"), ("merge", "approved")):
            assert shop.made == ["look"], "nothing goes on before the last answer"
            assert (await office.answer("alice", asked[tool], outcome))[0] == "accepted"
        async with office.worker(shop.agent(Approvers(MANAGERS)), **stores):
            await office.decided()
        said = str(await office.house.pool.fetchval(RESULT))
    assert (shop.asked, shop.made) == (2, ["look", "merge"])
    assert "deploy: deploy was not called: denied" in said
    assert "measure: <<data" in said and " go" in said
    assert "merged" in said and "a.py is fine" in said


async def test_nobody_answers_in_time_is_a_denial(office: Office) -> None:
    shop = Shop(CALLS[1:2])
    async with office.house.gate():
        async with office.worker(shop.agent(Approvers(MANAGERS, timedelta(milliseconds=300)))):
            await begin(office)
            await office.decided()
        said = str(await office.house.pool.fetchval(RESULT))
    assert shop.made == [] and "merge was not called: timed_out" in said


async def test_without_approvers_the_handler_fails_and_says_what_to_give() -> None:
    shop = Shop(CALLS[1:3])
    anybody = ToolRule(security_level=SecurityLevel.PUBLIC)
    agent = shop.agent(None, tool_rules={"merge": anybody, "deploy": anybody})
    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.send(Change(text="+ x"))
    assert str(failed.value.__cause__) == (
        "calls of deploy, merge wait for people, and red-1 asks nobody: give PydanticAgent "
        'approvers=Approvers(Role("…"))'
    )
    assert shop.made == []


def test_deferred_requests_as_an_output_need_approvers() -> None:
    joined = ModelAgent("test", output_type=[Report, DeferredToolRequests])
    with pytest.raises(AgentInvalid, match=r"has DeferredToolRequests: give PydanticAgent approvers=Approvers\("):
        PydanticAgent("red-1", joined, input=Change)
    assert PydanticAgent("red-1", joined, input=Change, approvers=Approvers(MANAGERS)).models == {Change, Report}
