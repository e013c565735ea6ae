"""Assistants act: as the caller, through the acts of the web console, after a person has confirmed what was shown."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.doors.mcp.conftest import Assistant, Person, opened
from tests.orchestrator.conftest import make_brief
from tests.orchestrator.judging.test_task_sessions import open_task
from tests.orchestrator.waiting.office import asking
from tests.support.traffic import SESSION
from tests.support.traffic.packets import make_packet, make_start
from tests.web.inbox.conftest import Desk, operating

from apc_client.local_acts import OPERATOR_USER
from apc_contracts import IdeaPayload
from apc_contracts.vocabulary import RunPhase
from apc_mcp import Door, make_server
from apc_mcp.answers import UNTRUSTED
from apc_web.access import LOCAL


@pytest.fixture
async def asked(desk: Desk, operator: Assistant) -> AsyncIterator[dict[str, Any]]:
    """The open question, as an assistant reads it; alice may answer."""
    async with desk.office.worker(asking("Ship?", content={"order": "A-2"})):
        opening = await desk.house.open(open_task())
        await desk.office.hire("alice", "release-manager", OPERATOR_USER)
        await operating(desk)
        task = make_packet("librarian", make_brief(), ("red-1",), phase=RunPhase.EXECUTION, parent=opening)
        await desk.house.publish(task)
        await desk.office.question()
        (question,) = (await operator.call("approvals"))["items"]
        yield question


async def test_a_question_is_approved_by_who_read_it(
    desk: Desk, operator: Assistant, person: Person, asked: dict[str, Any]
) -> None:
    given = {"packet_id": asked["packet_id"], "act": "approve", "seen": asked["payload_hash"], "note": "go"}
    done = await operator.call("answer_question", **given)
    assert done["verdict"] == "accepted"
    (shown,) = person.shown
    assert "Approve what red-1 asks" in shown and "> Ship?" in shown and "A-2" in shown and "Reason: go" in shown
    assert person.hashes == [asked["payload_hash"]]
    assert (await desk.office.decided()).startswith("approved by alice: go")
    assert asked[UNTRUSTED]["text"] == "Ship?"


async def test_what_nobody_confirms_is_not_done(operator: Assistant, person: Person, asked: dict[str, Any]) -> None:
    given = {"packet_id": asked["packet_id"], "act": "approve", "seen": asked["payload_hash"]}
    for action in ("decline", "cancel"):
        person.action = action
        assert (await operator.refusal("answer_question", **given)).startswith("NOT_CONFIRMED: ")
    assert (await operator.call("approvals"))["items"], "it is still open"


async def test_a_session_is_paused_and_stopped_as_the_operator(
    desk: Desk, operator: Assistant, person: Person, idea: IdeaPayload
) -> None:
    await desk.house.open(make_start())
    await operating(desk)
    paused = await operator.call("signal_session", session_id=SESSION, act="pause", reason="lunch")
    assert paused["detail"]["state"] == "paused in SESSION_OPEN"
    assert "Pause session s-1 of run run-1? It is SESSION_OPEN." in person.shown[0]
    await operator.call("signal_session", session_id=SESSION, act="stop")
    assert "It is paused in SESSION_OPEN." in person.shown[1]
    assert (await operator.call("session", session_id=SESSION))["state"] == "HALTED"
    refused = await operator.refusal("signal_session", session_id="elsewhere", act="stop")
    assert refused.startswith("NOT_FOUND at session_id") and len(person.shown) == 2, "nobody is asked for nothing"


async def test_a_dead_letter_is_requeued_and_discarded(
    desk: Desk, operator: Assistant, person: Person, idea: IdeaPayload
) -> None:
    await desk.house.open(make_start())
    await operating(desk)
    sent = await desk.die(idea)
    (dead,) = (await operator.call("dead_letters"))["items"]
    name = {key: dead[key] for key in ("packet_id", "session_id", "recipient")}
    assert name["packet_id"] == str(sent.packet_id) and dead[UNTRUSTED]["words"]
    await operator.call("settle_dead_letter", **name, act="requeue", note="mended")
    assert "Requeue the IDEA" in person.shown[0] and "attempt 1" in person.shown[0]
    assert (await operator.call("dead_letters"))["items"] == []
    again = await operator.refusal("settle_dead_letter", **name, act="requeue")
    assert again.startswith("NOT_FOUND at packet_id")
    await desk.report("blue-1", sent, 2)
    assert (await operator.refusal("settle_dead_letter", **name, act="discard")).startswith("INVALID at note: ")
    await operator.call("settle_dead_letter", **name, act="discard", note="too old")
    assert (await operator.call("dead_letters"))["items"] == []


async def test_without_a_person_who_can_be_asked_nothing_is_done(desk: Desk) -> None:
    await desk.house.open(make_start())
    await operating(desk)
    services = desk.bench.services
    async with opened(Client(make_server(Door(services, local=LOCAL, acts=services.acts)))) as alone:
        with pytest.raises(MCPError, match="elicitation"):
            await alone.client.call_tool("signal_session", {"session_id": SESSION, "act": "stop"})
        assert (await alone.call("session", session_id=SESSION))["state"] == "SESSION_OPEN"
        assert (await alone.refusal("effects")).startswith("NO_STATE: ")


async def test_a_server_that_only_reads_has_no_tool_that_acts(desk: Desk) -> None:
    services = desk.bench.services
    async with opened(Client(make_server(Door(services, local=LOCAL)))) as reader:
        tools = (await reader.client.list_tools()).tools
        assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
        assert not any(tool.name.startswith(("settle_", "signal_", "answer_")) for tool in tools)
