"""Issues over the API: groups, single troubles with their texts, acknowledged and open again; what a viewer sees."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.traffic.packets import make_packet, make_start
from tests.web.inbox.conftest import Desk, operating

from apc_contracts import ErrorPayload, IdeaPayload, SignalPayload
from apc_contracts.vocabulary import Signal
from apc_web import access
from apc_web.access import AccountRole, Caller


@pytest.fixture
async def troubled(desk: Desk, idea: IdeaPayload) -> AsyncIterator[Desk]:
    """Two refusals of one code, a dead letter and the exception behind it."""
    house = desk.house
    await house.open(make_start())
    await house.handle_all()
    await operating(desk)
    sent = await desk.die(idea)
    said = ErrorPayload(error_code="HANDLER_ERROR", message="Smith.Error: <b>boom</b>", retryable=False)
    await house.publish(make_packet("blue-1", said, ("red-1",), parent=sent))
    for agent in ("red-1", "blue-1"):
        await house.publish(make_packet(agent, SignalPayload(signal=Signal.VETO), parent=house.opening))
    await house.quiet()
    yield desk


async def groups(desk: Desk, **given: Any) -> dict[tuple[str, str], dict[str, Any]]:
    found = await desk.get("/issues", **given)
    assert found["behind"] == 0 and found["is_complete"]
    return {(one["kind"], one["code"]): one for one in found["groups"]}


async def test_what_went_wrong_is_grouped(troubled: Desk) -> None:
    found = await groups(troubled)
    kinds = {kind: (code, one["count"]) for (kind, code), one in found.items()}
    assert kinds["failure"] == ("HANDLER_ERROR", 1) and kinds["dead_letter"][1] == 1 and kinds["refusal"][1] == 2
    assert next(one["rule"] for (kind, _), one in found.items() if kind == "failure") == "Smith.Error"
    assert all(one["is_open"] and one["remedy"] and sum(one["bins"]) == one["count"] for one in found.values())
    for by in ("rule", "agent", "field"):
        assert sum(one["count"] for one in (await troubled.get("/issues", by=by))["groups"]) == 4
    only = await groups(troubled, kind="refusal", agent_id="red-1")
    assert [one["count"] for one in only.values()] == [1]
    late = await troubled.get("/issues", since="2100-01-01T00:00:00Z", until="2100-01-02T00:00:00Z")
    assert late["groups"] == []
    assert (await troubled.get("/issues", 422, since="2100-01-01T00:00:00Z"))["field"] == "since"


async def test_single_troubles_come_newest_first(troubled: Desk) -> None:
    page = await troubled.get("/issues/occurrences", limit=3)
    rest = await troubled.get("/issues/occurrences", after=page["next"], limit=3)
    times = [one["at"] for one in [*page["items"], *rest["items"]]]
    assert times == sorted(times, reverse=True) and len(times) == 4
    (failure,) = [one for one in [*page["items"], *rest["items"]] if one["kind"] == "failure"]
    assert failure["message"] == "Smith.Error: <b>boom</b>", "a text, which the page shows as text"
    assert (await troubled.get("/issues/occurrences", 400, after=page["next"], kind="failure"))["code"] == "BAD_CURSOR"


def named(group: dict[str, Any], note: str = "known") -> dict[str, Any]:
    return {"kind": group["kind"], "code": group["code"], "note": note, "seen_until": group["last_at"]}


async def test_an_acknowledgement_lasts_until_it_happens_again(troubled: Desk) -> None:
    (refusal,) = (await groups(troubled, kind="refusal")).values()
    done = await troubled.post("/issues/acknowledge", **named(refusal, " <i>being mended</i> "))
    assert done["detail"]["by"] == "operator"
    (known,) = (await groups(troubled, kind="refusal")).values()
    assert not known["is_open"]
    assert (known["acknowledged"]["by"], known["acknowledged"]["note"]) == ("operator", "<i>being mended</i>")
    assert await groups(troubled, kind="refusal", state="open") == {}
    house = troubled.house
    await house.publish(make_packet("red-1", SignalPayload(signal=Signal.VETO), parent=house.opening))
    await house.quiet()
    (again,) = (await groups(troubled, kind="refusal", state="open")).values()
    assert again["count"] == 3 and again["acknowledged"] == known["acknowledged"]


@pytest.mark.parametrize("note", ["", "  ", "n" * 301])
async def test_an_acknowledgement_says_what_is_done(troubled: Desk, note: str) -> None:
    (refusal,) = (await groups(troubled, kind="refusal")).values()
    assert (await troubled.post("/issues/acknowledge", 422, **named(refusal, note)))["field"] == "note"
    assert (await troubled.post("/issues/acknowledge", 422, **(named(refusal) | {"code": None})))["field"] == "code"


async def test_what_nobody_has_seen_is_not_acknowledged(troubled: Desk) -> None:
    (refusal,) = (await groups(troubled, kind="refusal")).values()
    ahead = named(refusal) | {"seen_until": "2100-01-01T00:00:00Z"}
    assert (await troubled.post("/issues/acknowledge", 409, **ahead))["code"] == "NOT_POSSIBLE"


async def test_a_viewer_sees_counts_and_codes_and_no_texts(troubled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (failure,) = (await groups(troubled, kind="failure")).values()
    await troubled.post("/issues/acknowledge", **named(failure, "call Smith"))
    assert "Smith" in str(await troubled.get("/issues")) and "boom" in str(await troubled.get("/issues/occurrences"))
    monkeypatch.setattr(access, "LOCAL", Caller(access.LOCAL_USER, AccountRole.VIEWER))
    monkeypatch.setattr("apc_web.guard.LocalToken.caller_of", lambda self, *given: access.LOCAL)
    told = [await troubled.get("/issues"), await troubled.get("/issues", by="rule")]
    told += [await troubled.get("/issues/occurrences"), await troubled.get("/dead"), await troubled.get("/dead/groups")]
    assert not any(text in str(told) for text in ("Smith", "boom"))
    assert {one["count"] for one in told[0]["groups"]} == {1, 2}
    assert (await troubled.get("/issues", rule="Smith.Error"))["groups"] == [], "whether it is there is a text, too"
    assert (await troubled.get("/issues", 403, by="field"))["code"] == "NO_ROLE"
    assert (await troubled.get("/issues/occurrences", 403, field="recipients[0]"))["code"] == "NO_ROLE"
    assert (await troubled.post("/issues/acknowledge", 403, **named(failure)))["code"] == "NO_ROLE"
