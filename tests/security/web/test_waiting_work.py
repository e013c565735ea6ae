"""Attacks on what waits for people: approvals, dead letters, effects and issues, over the API of the page."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import make_brief
from tests.orchestrator.judging.test_task_sessions import open_task
from tests.orchestrator.waiting.office import asking
from tests.support.traffic.packets import make_packet, make_start
from tests.web.inbox.conftest import Desk, desk, folder, operating

from apc_client.local_acts import OPERATOR_USER
from apc_client.operator import operator_person
from apc_client.registration import LOG_PATIENCE, addition, publish_changes, wait_until_recorded
from apc_contracts import ErrorPayload, IdeaPayload, SignalPayload
from apc_contracts.identity.registry_change import AgentRevoked, AnyChange
from apc_contracts.vocabulary import RunPhase, Signal
from apc_web import acts, issues
from apc_web.access import AccountRole, Caller

__all__ = ["desk", "folder"]
HOSTILE = "<img src=x onerror=alert(1)> \u202e \x1b[31m"
CALLER = "apc_web.guard.LocalToken.caller_of"
ENTRIES = "SELECT detail ->> 'by' AS by FROM apc_log.log_events WHERE kind = 'acknowledged'"
FOLDER = Path(__file__).parents[3] / "web" / "frontend" / "src"


def log_in(monkeypatch: pytest.MonkeyPatch, name: str, role: AccountRole = AccountRole.OPERATOR) -> None:
    monkeypatch.setattr(CALLER, lambda self, *given: Caller(name, role))


@pytest.fixture
async def asked(desk: Desk) -> AsyncIterator[dict[str, Any]]:
    """A question to alice and bob, in whose names this server may send."""
    async with desk.office.worker(asking("Ship?", content={"about": HOSTILE})):
        opening = await desk.house.open(open_task())
        for person in ("alice", "bob"):
            await desk.office.hire(person, "release-manager", OPERATOR_USER)
        task = make_packet("librarian", make_brief(), ("red-1",), phase=RunPhase.EXECUTION, parent=opening)
        await desk.house.publish(task)
        await desk.office.question()
        (one,) = (await desk.bench.get("/approvals"))["items"]
        yield one


async def test_content_that_was_not_seen_is_not_approved(
    desk: Desk, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/approvals/{asked['packet_id']}/approve"
    given: dict[str, Any] = {"note": "go", "person": "alice"}
    assert (await desk.post(path, 422, **given))["code"] == "NOT_SEEN"
    assert (await desk.post(path, 409, **given, seen="f" * 64))["code"] == "NOT_SEEN"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(acts, "require_seen", _nothing)
        refused = await desk.post(path, 409, **given, seen="f" * 64)
        assert "another payload hash" in refused["detail"], "the gate compares too"
        await desk.post(path, **given)


async def _nothing(*given: Any) -> None:
    return None


async def test_nobody_answers_for_another_or_twice(
    desk: Desk, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, "bob")
    (shown,) = (await desk.bench.get("/approvals"))["items"]
    assert shown["answer_as"] == ["bob"], "the one who is logged in, and nobody else of those asked"
    path, seen = f"/approvals/{asked['packet_id']}", asked["payload_hash"]
    assert (await desk.post(f"{path}/approve", 403, person="alice", seen=seen))["code"] == "NOT_YOU"
    log_in(monkeypatch, "mallory")
    assert "mallory" in (await desk.post(f"{path}/approve", 409, seen=seen))["detail"]
    with monkeypatch.context() as unguarded:  # a token of this machine names whom it speaks for
        unguarded.setattr(CALLER, lambda self, *given: Caller("local", AccountRole.OPERATOR))
        assert (await desk.post(f"{path}/approve", person="alice", seen=seen))["detail"]["by"] == "alice"
    log_in(monkeypatch, "bob")
    assert "no open question" in (await desk.post(f"{path}/deny", 409))["detail"]
    (kept,) = (await desk.get("/approvals/answered"))["items"]
    assert (kept["outcome"], kept["answered_by"]) == ("approved", "alice")


@pytest.fixture
async def troubled(desk: Desk, idea: IdeaPayload) -> AsyncIterator[Desk]:
    """A refusal, a dead letter and its exception; olga may operate, carl not, rex was revoked."""
    house = desk.house
    await house.open(make_start())
    await house.handle_all()
    await operating(desk)
    await desk.office.hire("carl", "intern", OPERATOR_USER)
    changes: list[AnyChange] = [addition(operator_person(name, OPERATOR_USER)) for name in ("olga", "rex")]
    changes.append(AgentRevoked(change_id=uuid4(), agent_id="rex"))
    await publish_changes(house.client(OPERATOR_USER), changes, 1)
    await wait_until_recorded(house.pool, changes, 1, LOG_PATIENCE)
    sent = await desk.die(idea)
    said = ErrorPayload(error_code="HANDLER_ERROR", message=f"Smith: {HOSTILE}", retryable=False)
    await house.publish(make_packet("blue-1", said, ("red-1",), parent=sent))
    await house.publish(make_packet("red-1", SignalPayload(signal=Signal.VETO), parent=house.opening))
    await house.quiet()
    yield desk


async def refusal_of(desk: Desk) -> dict[str, Any]:
    (found,) = (await desk.get("/issues", kind="refusal"))["groups"]
    return {"kind": "refusal", "code": found["code"], "seen_until": found["last_at"], "note": HOSTILE}


@pytest.mark.parametrize("who", ["carl", "rex", "mallory"])
async def test_nobody_acknowledges_without_the_right(troubled: Desk, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = await refusal_of(troubled)
    log_in(monkeypatch, who)
    assert (await troubled.post("/issues/acknowledge", 403, **given))["code"] == "NO_ACTS"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(issues, "require_operator", _unchecked)
        unguarded.setattr("apc_client.operator.why_no_acts", lambda found, user: None)
        if who != "mallory":
            refused = await troubled.post("/issues/acknowledge", 409, **given)
            assert f"{who} is not registered with the right to operate" in refused["detail"], "the database asks too"
    assert await troubled.house.pool.fetch(ENTRIES) == []
    log_in(monkeypatch, "olga")
    await troubled.post("/issues/acknowledge", **given)


async def _unchecked(acts: Any) -> None:
    return None


async def test_nobody_acknowledges_for_another(troubled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is logged in stands in the entry, whatever else the request says."""
    log_in(monkeypatch, "olga")
    done = await troubled.post("/issues/acknowledge", **await refusal_of(troubled), by="operator", person="operator")
    assert done["detail"]["by"] == "olga"
    assert [row["by"] for row in await troubled.house.pool.fetch(ENTRIES)] == ["olga"]
    (known,) = (await troubled.get("/issues", kind="refusal"))["groups"]
    assert known["acknowledged"]["note"] == HOSTILE.strip(), "a note is text, and comes back as it was written"


async def test_a_bulk_act_does_no_more_than_its_preview(troubled: Desk) -> None:
    (group,) = (await troubled.get("/dead/groups"))["groups"]
    (seen,) = [
        {name: one[name] for name in ("packet_id", "session_id", "recipient", "attempt")} for one in group["members"]
    ]
    await troubled.post("/dead/requeue", deliveries=[seen])
    await troubled.house.read("blue-1")
    await troubled.report("blue-1", troubled.sent[seen["packet_id"]], 2)
    left = await troubled.post("/dead/discard", 409, deliveries=[seen], note="old")
    assert "failed again since" in left["detail"]
    unguarded = {name: value for name, value in seen.items() if name != "attempt"}
    done = await troubled.post("/dead/discard", deliveries=[unguarded], note="whatever it is now")
    assert done["detail"]["deliveries"][0]["verdict"] == "discarded"


async def test_a_viewer_learns_no_exception(troubled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("/issues", "/issues/occurrences", "/dead", "/dead/groups")
    log_in(monkeypatch, "vera", AccountRole.VIEWER)
    told = [str(await troubled.get(path)) for path in paths]
    told += [str(await troubled.get("/issues", by=by)) for by in ("rule", "agent")]
    assert not any("Smith" in one or "onerror" in one for one in told)
    assert (await troubled.get("/issues", rule="Smith"))["groups"] == [], "nor by asking for it"
    assert (await troubled.get("/issues", 403, by="field"))["code"] == "NO_ROLE"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(CALLER, lambda self, *given: Caller("rita", AccountRole.READER))
        assert (await troubled.get("/issues", rule="Smith"))["groups"] != []
        read = [str(await troubled.get(path)) for path in paths]
        assert all("Smith" in one for one in read)


def test_the_page_makes_no_html_of_texts() -> None:
    """Notes, exceptions and contents are text of elements."""
    sources = [path for path in FOLDER.rglob("*.ts*") if path.name != "schema.d.ts"]
    assert len(sources) > 80
    words = ("innerHTML", "dangerouslySetInnerHTML", "insertAdjacentHTML", "document.write", "outerHTML")
    assert not [path.name for path in sources if any(word in path.read_text(encoding="utf-8") for word in words)]
