"""Agents that speak the user's types: what is checked when they are built, and what travels."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, RootModel, create_model

from apc_agents import Agent, AgentError, AgentInvalid, AgentTestClient, HandlerContext, HandlerFailed, message
from apc_agents.typed import content_of, document_of, payload_of, schema_of
from apc_contracts import MessagePayload, NackPayload, Packet, PacketType
from apc_contracts.schemas import register_schema


def _is_relative(path: str) -> str:
    if path.startswith("/"):
        raise ValueError("an absolute path")
    return path


@message("finding/1")
class Finding(BaseModel):
    file: Annotated[str, AfterValidator(_is_relative)]
    severity: Literal["low", "high"] = "low"
    lines: list[int] = Field(default_factory=list, alias="at")


@message("verdict/2")
class Verdict(BaseModel):
    text: str


class Plain(BaseModel):
    text: str


def _agent() -> Agent:
    return Agent("triage", role="reviewer", swarm="review")


async def test_a_handler_takes_and_returns_models() -> None:
    agent = _agent()

    @agent.on(Finding)
    async def judge(finding: Finding, ctx: HandlerContext) -> Verdict:
        assert ctx.packet.packet_type is PacketType.MESSAGE
        await ctx.emit(Verdict(text="seen"), to="log")
        return Verdict(text=f"{finding.file}:{finding.lines[0]} is {finding.severity}")

    async with AgentTestClient(agent) as client:
        answer = await client.send(Finding(file="a.py", at=[3]))
        assert answer is not None
        assert [content_of(one, Verdict).text for one in client.emitted] == ["seen", "a.py:3 is low"]
        assert content_of(answer, Verdict).text == "seen"
        assert client.emitted[1].recipients[0].agent_id == "tester"
    assert agent.schemas == {"finding/1"}
    assert agent.models == {Finding, Verdict}


async def test_each_schema_has_its_handler_and_the_type_takes_the_rest() -> None:
    agent, taken = _agent(), []

    @agent.on(Finding)
    async def one(finding: Finding, ctx: HandlerContext) -> None:
        taken.append("finding")

    @agent.on(PacketType.MESSAGE)
    async def other(packet: Packet[MessagePayload], ctx: HandlerContext) -> tuple[Verdict, ...]:
        taken.append(packet.payload.schema_id)
        return (Verdict(text="a"), Verdict(text="b"))

    async with AgentTestClient(agent) as client:
        await client.send(Finding(file="a.py"))
        await client.send(MessagePayload(schema_id="other/1", content={}))
        assert [content_of(one, Verdict).text for one in client.emitted] == ["a", "b"]
    assert taken == ["finding", "other/1"]
    assert agent.schemas == {"*"}


async def test_content_that_the_model_refuses_is_rejected_with_its_place() -> None:
    agent, taken = _agent(), []

    @agent.on(Finding)
    async def judge(finding: Finding, ctx: HandlerContext) -> None:
        taken.append(finding)

    hostile = MessagePayload(schema_id="finding/1", content={"file": "/etc/passwd", "severity": "low", "at": []})
    async with AgentTestClient(agent) as client:
        answer = await client.send(hostile)
        assert answer is not None
        assert answer.payload_as(NackPayload).reason == "payload.content.file: Value error, an absolute path (Finding)"
    assert taken == []


async def test_what_is_no_payload_and_no_message_is_not_emitted() -> None:
    agent = _agent()

    @agent.on(Finding)
    async def judge(finding: Finding, ctx: HandlerContext) -> Any:
        return Plain(text="no schema")

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.send(Finding(file="a.py"))
    assert '@message("name/1")' in str(failed.value.__cause__)


def test_what_a_model_serializes_to_fits_its_schema_and_comes_back() -> None:
    finding = Finding(file="a.py", at=[1, 2])
    payload = payload_of(finding)
    assert isinstance(payload, MessagePayload)
    assert payload.content == {"file": "a.py", "severity": "low", "at": [1, 2]}
    assert register_schema("finding/1", document_of(Finding)).fault(payload.content, "content") is None
    assert Finding.model_validate(payload.content) == finding


async def test_the_content_of_another_schema_is_not_read() -> None:
    agent = _agent()

    @agent.on(Finding)
    async def judge(finding: Finding, ctx: HandlerContext) -> Verdict:
        return Verdict(text="")

    async with AgentTestClient(agent) as client:
        answer = await client.send(Finding(file="a.py"))
    assert answer is not None
    with pytest.raises(AgentError, match=r"is no Finding \(finding/1\): it is verdict/2"):
        content_of(answer, Finding)


def test_a_subclass_is_another_message() -> None:
    assert schema_of(Finding) == "finding/1"
    assert schema_of(create_model("Derived", __base__=Finding)) is None


@pytest.mark.parametrize("schema_id", ["finding", "finding/", "/1", "find ing/1", "finding/one", ""])
def test_a_schema_without_name_and_version_is_refused(schema_id: str) -> None:
    with pytest.raises(AgentInvalid, match="write it like finding/1"):
        message(schema_id)


@pytest.mark.parametrize("model", [RootModel[list[int]], dict, 3])
def test_what_has_no_fields_is_no_message(model: Any) -> None:
    with pytest.raises(AgentInvalid, match="BaseModel with fields"):
        message("finding/1")(model)


async def _takes_a_plain(content: Plain, ctx: HandlerContext) -> None: ...


async def _takes_a_verdict(content: Verdict, ctx: HandlerContext) -> None: ...


async def _takes_one(content: Finding) -> None: ...


async def _returns_a_plain(content: Finding, ctx: HandlerContext) -> Plain:
    return Plain(text="")


def _is_not_async(content: Finding, ctx: HandlerContext) -> None: ...


@pytest.mark.parametrize(
    ("model", "function", "said"),
    [
        (Plain, _takes_a_plain, r'Plain has no schema: decorate it with @message\("plain/1"\)'),
        (Finding, _takes_a_verdict, "annotate it as Finding"),
        (Finding, _takes_one, r"write `async def _takes_one\(content: Finding, ctx: HandlerContext\)`"),
        (Finding, _returns_a_plain, "a model with @message"),
        (Finding, _is_not_async, "is not async"),
        ("finding/1", _takes_a_plain, "a PacketType or a model"),
    ],
)
def test_a_handler_that_does_not_fit_is_refused_when_the_agent_is_built(model: Any, function: Any, said: str) -> None:
    with pytest.raises(AgentInvalid, match=said):
        _agent().on(model)(function)


def test_two_handlers_of_a_model_are_refused() -> None:
    agent = _agent()
    agent.on(Verdict)(_takes_a_verdict)
    with pytest.raises(AgentInvalid, match="two handlers for MESSAGE verdict/2"):
        agent.on(Verdict)(_takes_a_verdict)
