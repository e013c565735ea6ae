"""Approvals over the API: approved as seen, answered by whom one is, and kept with what followed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.orchestrator.conftest import make_brief
from tests.orchestrator.judging.test_task_sessions import open_task
from tests.orchestrator.waiting.office import asking
from tests.orchestrator.waiting.test_typed_answers import FITTING, refunding
from tests.support.traffic.packets import make_packet
from tests.web.inbox.conftest import Desk

from apc_client.local_acts import OPERATOR_USER
from apc_contracts.vocabulary import RunPhase

BIG = {f"field_{number}": "lorem ipsum" for number in range(60)}


@pytest.fixture
async def asked(desk: Desk) -> AsyncIterator[dict[str, Any]]:
    """The open question, as the API shows it; two people may answer."""
    async with desk.office.worker(asking("Ship?", content=BIG)):
        opening = await desk.house.open(open_task())
        for person in ("alice", "bob"):
            await desk.office.hire(person, "release-manager", OPERATOR_USER)
        task = make_packet("librarian", make_brief(), ("red-1",), phase=RunPhase.EXECUTION, parent=opening)
        await desk.house.publish(task)
        question = await desk.office.question()
        (one,) = (await desk.get("/approvals"))["items"]
        assert one["packet_id"] == str(question.packet_id) and one["content"] == BIG
        yield one


async def test_what_was_not_seen_is_not_approved(desk: Desk, asked: dict[str, Any]) -> None:
    path = f"/approvals/{asked['packet_id']}/approve"
    unseen = await desk.post(path, 422, note="go", person="alice")
    assert (unseen["code"], unseen["field"]) == ("NOT_SEEN", "seen")
    other = await desk.post(path, 409, note="go", person="alice", seen="0" * 64)
    assert other["code"] == "NOT_SEEN"
    assert (await desk.get("/approvals"))["items"], "it is still open"
    done = await desk.post(path, note="go", person="alice", seen=asked["payload_hash"])
    assert done["detail"] == {"outcome": "approved", "by": "alice"}
    assert (await desk.office.decided()).startswith("approved by alice: go")


async def test_denying_needs_no_look(desk: Desk, asked: dict[str, Any]) -> None:
    await desk.post(f"/approvals/{asked['packet_id']}/deny", note="too risky", person="alice")
    assert (await desk.office.decided()).startswith("denied by alice: too risky")


async def test_an_answered_question_stays_with_what_followed(desk: Desk, asked: dict[str, Any]) -> None:
    before = await desk.get("/approvals/answered")
    assert before["items"] == []
    given = {"note": "<b>go</b>", "person": "alice", "seen": asked["payload_hash"]}
    await desk.post(f"/approvals/{asked['packet_id']}/approve", **given)
    await desk.office.decided()
    await desk.house.quiet()
    (one,) = (await desk.get("/approvals/answered"))["items"]
    assert (one["packet_id"], one["outcome"], one["answered_by"]) == (asked["packet_id"], "approved", "alice")
    assert (one["note"], one["text"], one["content"]) == ("<b>go</b>", "Ship?", BIG)
    (decision,) = one["followed"]
    assert (decision["packet_type"], decision["verdict"], decision["sender"]) == ("DECISION", "accepted", "red-1")
    assert decision["line"].startswith("approved by alice")
    assert (await desk.get("/approvals"))["items"] == []
    assert (await desk.get("/approvals/answered", session_id="another"))["items"] == []


async def test_two_may_answer_and_the_first_counts(desk: Desk, asked: dict[str, Any]) -> None:
    """Nobody is answered for by accident: with several whom the server speaks for, one is named."""
    path, seen = f"/approvals/{asked['packet_id']}/approve", asked["payload_hash"]
    unnamed = await desk.post(path, 409, seen=seen)
    assert "speaks for alice, bob: say who answers" in unnamed["detail"]
    await desk.post(path, seen=seen, person="alice")
    twice = await desk.post(f"/approvals/{asked['packet_id']}/deny", 409, person="alice")
    assert "no open question" in twice["detail"]
    assert (await desk.get("/approvals/answered"))["items"][0]["outcome"] == "approved"


async def test_pages_of_answers_have_their_cursor(desk: Desk, asked: dict[str, Any]) -> None:
    await desk.post(f"/approvals/{asked['packet_id']}/deny", person="alice")
    page = await desk.get("/approvals/answered", limit=1)
    assert page["next"] is None and len(page["items"]) == 1
    for bad in ("x", "W10"):
        assert (await desk.get("/approvals/answered", 400, after=bad))["code"] == "BAD_CURSOR"
    late = await desk.get("/approvals/answered", since="2100-01-01T00:00:00Z")
    assert late["items"] == []


@pytest.mark.long
async def test_a_question_is_answered_with_fields(desk: Desk) -> None:
    async with desk.office.worker(refunding()):
        opening = await desk.house.open(open_task())
        await desk.office.hire("alice", "release-manager", OPERATOR_USER)
        task = make_packet("librarian", make_brief(), ("red-1",), phase=RunPhase.EXECUTION, parent=opening)
        await desk.house.publish(task)
        await desk.office.question()
        (one,) = (await desk.get("/approvals"))["items"]
        assert one["answer_schema"]["x-order"] == ["amount", "due", "reason", "notes"]
        path, given = f"/approvals/{one['packet_id']}", {"person": "alice", "seen": one["payload_hash"]}
        bare = await desk.post(f"{path}/approve", 422, **given)
        assert (bare["code"], bare["field"]) == ("INVALID", "answer")
        dear = await desk.post(f"{path}/approve", 422, **given, answer=FITTING | {"amount": "501"})
        assert (dear["field"], dear["detail"]) == ("answer.amount", "answer.amount: this value is to be at most 500")
        denied = await desk.post(f"{path}/deny", 422, person="alice", answer=FITTING)
        assert denied["field"] == "answer"
        await desk.post(f"{path}/approve", **given, answer=FITTING)
        assert "Decimal('80.50')" in await desk.office.decided()
        (answered,) = (await desk.get("/approvals/answered"))["items"]
        assert (answered["answer"], answered["answer_schema"]) == (FITTING, one["answer_schema"])


async def test_a_question_without_fields_takes_none(desk: Desk, asked: dict[str, Any]) -> None:
    given = {"person": "alice", "seen": asked["payload_hash"], "answer": {"amount": 1}}
    refused = await desk.post(f"/approvals/{asked['packet_id']}/approve", 422, **given)
    assert (refused["field"], asked["answer_schema"]) == ("answer", None)
