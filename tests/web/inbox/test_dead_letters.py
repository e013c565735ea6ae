"""Dead letters over the API: why they failed, groups, and acts on many that leave what has changed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.traffic.packets import make_packet, make_start
from tests.web.inbox.conftest import Desk, operating

from apc_contracts import ErrorPayload, IdeaPayload


@pytest.fixture
async def dead(desk: Desk, idea: IdeaPayload) -> AsyncIterator[Desk]:
    """Two dead letters of blue-1 and one of sentinel."""
    await desk.house.open(make_start())
    await desk.house.handle_all()
    await operating(desk)
    for agent in ("blue-1", "sentinel", "blue-1"):
        await desk.die(idea, agent)
    yield desk


def names_of(members: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: one[name] for name in ("packet_id", "session_id", "recipient", "attempt")} for one in members]


async def test_letters_of_one_cause_are_a_group(dead: Desk) -> None:
    found = await dead.get("/dead/groups")
    assert [(one["recipient"], one["count"], one["can_requeue"]) for one in found["groups"]] == [
        ("blue-1", 2, 2),
        ("sentinel", 1, 1),
    ]
    assert (found["looked_at"], found["is_complete"]) == (3, True)
    first = found["groups"][0]
    assert first["expires_at"] == min(one["expires_at"] for one in first["members"])
    items = (await dead.get("/dead"))["items"]
    assert {(one["recipient"], one["body"], bool(one["line"])) for one in items} >= {("blue-1", "readable", True)}


async def test_the_exception_is_told(dead: Desk) -> None:
    (sent, _) = [one for one in (await dead.get("/dead"))["items"] if one["recipient"] == "blue-1"]
    said = ErrorPayload(error_code="HANDLER_ERROR", message="KeyError: 'customer_id'", retryable=False)
    house = dead.house
    answered = make_packet("blue-1", said, ("red-1",), parent=dead.sent[sent["packet_id"]])
    await house.publish(answered)
    await house.quiet()
    (told, _) = [one for one in (await dead.get("/dead"))["items"] if one["recipient"] == "blue-1"]
    assert told["exception"] == "KeyError: 'customer_id'"
    assert told["words"].endswith("in 1 attempt: KeyError: 'customer_id'.")
    kinds = {(one["recipient"], one["exception_type"]) for one in (await dead.get("/dead/groups"))["groups"]}
    assert kinds == {("blue-1", "KeyError"), ("blue-1", None), ("sentinel", None)}


async def test_a_bulk_act_says_of_each_what_became_of_it(dead: Desk) -> None:
    (blue, _) = (await dead.get("/dead/groups"))["groups"]
    done = await dead.post("/dead/requeue", deliveries=names_of(blue["members"]), note="mended")
    assert [(one["state"], one["verdict"]) for one in done["detail"]["deliveries"]] == [("ROUTED", "requeued")] * 2
    assert [one["recipient"] for one in (await dead.get("/dead/groups"))["groups"]] == ["sentinel"]


async def test_a_letter_that_changed_since_the_preview_is_left(dead: Desk) -> None:
    """Somebody has delivered it again meanwhile, and it failed again: another failure than the one on the screen."""
    (blue, _) = (await dead.get("/dead/groups"))["groups"]
    first, second = names_of(blue["members"])
    await dead.post("/dead/requeue", deliveries=[first])
    await dead.house.read("blue-1")
    await dead.report("blue-1", dead.sent[first["packet_id"]], 2)
    done = await dead.post("/dead/discard", deliveries=[first, second], note="old")
    verdicts = {one["packet_id"]: one["verdict"] for one in done["detail"]["deliveries"]}
    assert verdicts[second["packet_id"]] == "discarded"
    assert "left as it is" in verdicts[first["packet_id"]] and "failed again since" in verdicts[first["packet_id"]]
    assert [one["packet_id"] for one in (await dead.get("/dead", agent_id="blue-1"))["items"]] == [first["packet_id"]]
    unseen = {name: value for name, value in first.items() if name != "attempt"}
    await dead.post("/dead/discard", deliveries=[unseen], note="without the attempt nothing is compared")


async def test_nothing_is_discarded_without_a_reason(dead: Desk) -> None:
    (blue, _) = (await dead.get("/dead/groups"))["groups"]
    for note in (None, "", "  "):
        refused = await dead.post("/dead/discard", 422, deliveries=names_of(blue["members"]), note=note)
        assert refused["field"] == "note"
    await dead.post("/dead/discard", deliveries=names_of(blue["members"]), note="a duplicate of 4711")
    notes = await dead.house.pool.fetch(
        "SELECT metadata ->> 'error' AS note FROM apc_log.packet_events WHERE 'discarded' = ANY (events)"
    )
    assert {row["note"] for row in notes} == {"discarded by operator: a duplicate of 4711"}
